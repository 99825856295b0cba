// Calls of a representative.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <span>

#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {
namespace {

// One pass without a branch: an exponent of ones is what NaN and the infinities have in common.
bool all_finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t n_bad = 0;
  for (const float value : values)
    n_bad += (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  return n_bad == 0;
}

}  // namespace

Representative::Representative(const OpenPlugin& plugin, const HostServices& services,
                               const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_REPRESENTATIVE,
               abi_least::kRepresentativeBytes),
      table_(copy_table<kvasir_representative>()) {
  if (!table().layout || !table().update || !table().score) {
    defect("create", "its representative has no layout(), update() or score()");
  }
}

bool Representative::sums_scores() const { return desc().provides & KVASIR_PROVIDE_SUMMED_SCORES; }

void Representative::read_layout() {
  kvasir_layout layout{};
  layout.struct_size = sizeof(layout);
  control_call("layout",
               [&](kvasir_err* err) { return table().layout(base().self, &layout, err); });
  layout_ = checked_layout(layout, KVASIR_KIND_REPRESENTATIVE);
  if (checked_) checked_->declared = std::max(layout_.state_bytes, layout_.state_peak_bytes);
}

kvasir_status Representative::update(const kvasir_step& step,
                                     const std::vector<kvasir_update_item>& items) {
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step, true);
  const kvasir_update_item* const given_items = arguments.items(items);
  const kvasir_status status = step_call("update", &step, [&](kvasir_err* err) {
    return table().update(base().self, given, given_items, static_cast<uint32_t>(items.size()),
                          sizeof(kvasir_update_item), err);
  });
  finish("update", arguments);
  return status;
}

kvasir_status Representative::score(const kvasir_step& step, const kvasir_score_in& in,
                                    kvasir_score_out& out) {
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_score_in* const given_in = arguments.score_in(in);
  const kvasir_view& value = out.value;
  kvasir_score_out* const given_out =
      arguments.score_out(out, step, in.flags & KVASIR_SCORE_SUMMED);
  const bool is_here = value.mem_kind != KVASIR_MEM_DEVICE && value.data;
  const std::span scores(static_cast<const float*>(value.data), is_here ? value.shape[0] : 0);
  const kvasir_status status = step_call("score", &step, [&](kvasir_err* err) {
    return table().score(base().self, given, given_in, given_out, err);
  });
  finish("score", arguments);
  out.bytes_read = given_out->bytes_read;
  if (!all_finite(scores)) defect("score", "a score is not finite, or was not written");
  return status;
}

}  // namespace kvasir
