// Calls of a representative.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {

Representative::Representative(const OpenPlugin& plugin, const HostServices& services,
                               const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_REPRESENTATIVE,
               abi_0_1::kRepresentativeBytes) {
  if (!table().layout || !table().update || !table().score) {
    defect("create", "its representative has no layout(), update() or score()");
  }
}

const kvasir_representative& Representative::table() const {
  return reinterpret_cast<const kvasir_representative&>(base());
}

void Representative::read_layout() {
  layout_ = {};
  layout_.struct_size = sizeof(layout_);
  control_call("layout",
               [&](kvasir_err* err) { return table().layout(base().self, &layout_, err); });
  check_layout(layout_, /*needs_records=*/true);
}

kvasir_status Representative::update(const kvasir_step& step,
                                     const std::vector<kvasir_update_item>& items) {
  return step_call("update", &step, [&](kvasir_err* err) {
    return table().update(base().self, &step, items.data(), static_cast<uint32_t>(items.size()),
                          sizeof(kvasir_update_item), err);
  });
}

kvasir_status Representative::score(const kvasir_step& step, const kvasir_score_in& in,
                                    kvasir_score_out& out) {
  return step_call("score", &step, [&](kvasir_err* err) {
    return table().score(base().self, &step, &in, &out, err);
  });
}

}  // namespace kvasir
