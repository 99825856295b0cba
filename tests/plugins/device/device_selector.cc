// block_topk on the test device: queries and scores come there, the lists stay on the host.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/device/device_memory.h"
#include "tests/plugins/device/inner_plugin.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr kvasir_option_schema kOptions[] = {
    sdk::int_option({.key = "budget_tokens", .help = "as block_topk has it"}, 0, 0, 1 << 30),
    sdk::bool_option({.key = "bad_index", .help = "its last index is no block"}, false)};

class DeviceSelector {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                                                      .id = "kvasir.test.device_selector",
                                                      .version = "0.1.0",
                                                      .name = "Selection on the test device",
                                                      .vendor = "Kvasir's tests",
                                                      .license = "Apache-2.0",
                                                      .summary = "test material",
                                                      .options = kOptions,
                                                      .needs = KVASIR_NEED_SCORES,
                                                      .mem_kinds_read = kDeviceOnly});

  DeviceSelector(const sdk::Host& host, const sdk::Options& options)
      : inner_(host.raw(), "block_topk", "budget_tokens", options.u32("budget_tokens")),
        bad_index_(options.boolean("bad_index")) {}

  void bind(const kvasir_geometry& geometry) { inner_.bind(geometry); }
  void limits(kvasir_sel_limits& out) {
    inner_.check(inner_->limits(inner_.self(), &out, inner_.err()));
  }
  kvasir_status select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    const DeviceMemory::Access access;
    kvasir_sel_in inner_in = in;
    inner_in.q = inside(in.q, "q");
    inner_in.scores = inside(in.scores, "the scores");
    const kvasir_status status =
        inner_->select(inner_.self(), &step.raw(), &inner_in, &out, inner_.err());
    if (bad_index_) out.index[out.list_offsets[out.n_lists] - 1] = 1000;
    return status;
  }

 private:
  InnerPlugin<kvasir_selector> inner_;
  const bool bad_index_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.device_selector", "0.1.0", DeviceSelector)
