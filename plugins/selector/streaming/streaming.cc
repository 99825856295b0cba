// Attends to the sink and the window only. Both are the core's, so nothing is left to choose.
// Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/plugin.h"

namespace {
using namespace kvasir;

class Streaming {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.streaming",
                     .version = "0.1.0",
                     .name = "Streaming",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to the sink and the window, to nothing between them.",
                     .needs = KVASIR_NEED_TOKEN_ROWS});

  Streaming(const sdk::Host&, const sdk::Options&) {}

  // Tokens, so that sink and window end exactly where they are configured to.
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_SEQUENCE;
  }

  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    sdk::flag_rows(out, KVASIR_SCOPE_SEQUENCE, step.n_rows(), KVASIR_ROW_NONE);
    out.reuse_steps = UINT32_MAX;
  }
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "kvasir.streaming\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<Streaming>(host, request, err);
}
