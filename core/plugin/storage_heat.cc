// Calls of a storage that orders blocks by what they are worth: kvasir.block-heat/1.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"

namespace kvasir {

// Asked once: neither the table nor what it wants changes.
uint32_t Storage::heat_wanted() const {
  if (heat_wanted_) return *heat_wanted_;
  heat_wanted_ = KVASIR_HEAT_NONE;
  const auto* t = static_cast<const kvasir_block_heat*>(extension(KVASIR_EXT_BLOCK_HEAT));
  if (!t) return *heat_wanted_;
  if (!KVASIR_HAS(t, kvasir_block_heat, heat) || !t->wants || !t->heat)
    defect(KVASIR_EXT_BLOCK_HEAT, "it has no wants() or heat()");
  const uint32_t wanted = unfailing_call("wants", [&] { return t->wants(base().self); });
  if (wanted > KVASIR_HEAT_SCORE)
    defect("wants",
           "it wants a kind of heat that this host does not know: " + std::to_string(wanted));
  heat_table_ = t;
  return *(heat_wanted_ = wanted);
}

void Storage::heat(const std::vector<kvasir_block_key>& keys, const std::vector<float>& values) {
  require(heat_wanted() != KVASIR_HEAT_NONE, KVASIR_EXT_BLOCK_HEAT);
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given = arguments.keys(keys);
  check("heat", step_call("heat", nullptr, [&](kvasir_err* err) {
          return heat_table_->heat(base().self, given, values.data(),
                                   static_cast<uint32_t>(keys.size()), sizeof(kvasir_block_key),
                                   err);
        }));
  finish("heat", arguments);
}

}  // namespace kvasir
