// Summaries on the test device: records, queries and scores lie there, the arithmetic is that of
// `inner`.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include <cmath>

#include "plugins/shared/element_type.h"
#include "tests/plugins/device/device_memory.h"
#include "tests/plugins/device/inner_plugin.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kInner[] = {"minmax", "mean"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "inner", .help = "whose arithmetic"}, kInner, 0),
    sdk::bool_option({.key = "nan_score", .help = "its last score is NaN"}, false)};

class DeviceRepresentative {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.test.device_representative",
                     .version = "0.1.0",
                     .name = "Summaries on the test device",
                     .vendor = "Kvasir's tests",
                     .license = "Apache-2.0",
                     .summary = "test material",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_SCORES | KVASIR_PROVIDE_SUMMED_SCORES,
                     .dtypes = sdk::kElementTypes,
                     .mem_kinds_read = kDeviceOnly,
                     .mem_kinds_write = kDeviceOnly});

  DeviceRepresentative(const sdk::Host& host, const sdk::Options& options)
      : nan_score_(options.boolean("nan_score")),
        inner_(host.raw(), kInner[options.choice("inner")]) {}

  void bind(const kvasir_geometry& geometry) { inner_.bind(geometry); }
  void layout(kvasir_layout& out) {
    inner_.check(inner_->layout(inner_.self(), &out, inner_.err()));
    out.mem_kind = KVASIR_MEM_DEVICE;
  }
  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    const DeviceMemory::Access access;
    std::vector<kvasir_update_item> inner_items;
    for (const kvasir_update_item& item : items) {
      check_lease(*item.lease);
      inner_items.push_back(item);
    }
    check_slab(step);
    inner_.check(inner_->update(inner_.self(), &step.raw(), inner_items.data(),
                                static_cast<uint32_t>(inner_items.size()), sizeof inner_items[0],
                                inner_.err()));
  }
  void score(const sdk::Step& step, const kvasir_score_in& in, kvasir_score_out& out) {
    const DeviceMemory::Access access;
    check_slab(step);
    const kvasir_score_in inner_in{sizeof inner_in, in.flags, inside(in.q, "q"), in.n_best, 0};
    kvasir_score_out inner_out = out;
    inner_out.value = inside(out.value, "the scores");
    inner_.check(inner_->score(inner_.self(), &step.raw(), &inner_in, &inner_out, inner_.err()));
    out.bytes_read = inner_out.bytes_read;
    if (nan_score_) sdk::floats(inner_out.value, "the scores")[out.value.shape[0] - 1] = NAN;
  }

 private:
  static void check_slab(const sdk::Step& step) {
    const kvasir_slab& slab = *step.raw().slab;
    if (slab.mem_kind != KVASIR_MEM_DEVICE) sdk::fail_invalid("the slab is not on the device");
    for (uint64_t page = 0; page < slab.seq_pages[step.n_seqs()]; ++page)
      if (slab.pages[page] && !DeviceMemory::instance().holds(slab.pages[page], 1))
        sdk::fail_invalid("a page of records does not lie on the device");
  }

  const bool nan_score_;
  InnerPlugin<kvasir_representative> inner_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.test.device_representative", "0.1.0",
                  DeviceRepresentative)
