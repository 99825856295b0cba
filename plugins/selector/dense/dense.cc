// Attends to everything: the baseline of every comparison.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/plugin.h"

namespace {
using namespace kvasir;

class Dense {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.dense",
                     .version = "0.1.0",
                     .name = "Dense",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to every cached token; the baseline."});

  Dense(const sdk::Host&, const sdk::Options&) {}

  // No select(): every candidate is attended. max_units = 0: there is no budget to fall short of.
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = KVASIR_SCOPE_SEQUENCE;
  }
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "kvasir.dense\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<Dense>(host, request, err);
}
