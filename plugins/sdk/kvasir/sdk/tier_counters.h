// kvasir.tier-counters/1 for a storage class with `tiers()`, which returns a list of
// kvasir_tier_count.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/ext/draft/tier_counters.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace kvasir::sdk {

// The whole of such a class's get_extension(), when it has no other.
template <class T>
const void* tier_counters_if_asked(const char* id) {
  static constexpr kvasir_tier_counters kTable = {
      sizeof(kvasir_tier_counters), 0,
      [](void* self, kvasir_tier_count* out, uint32_t capacity, uint32_t count_size,
         uint32_t* n_tiers, kvasir_err* err) noexcept {
        return guard(err, [&] {
          const auto tiers = detail::as<T>(self).tiers();
          *n_tiers = static_cast<uint32_t>(tiers.size());
          auto* to = reinterpret_cast<std::byte*>(out);  // a host may know fewer fields
          for (uint32_t i = 0; i < std::min(capacity, *n_tiers); ++i, to += count_size)
            std::memcpy(to, &tiers[i], std::min<size_t>(count_size, sizeof tiers[i]));
        });
      }};
  return std::string_view(id) == KVASIR_EXT_TIER_COUNTERS ? &kTable : nullptr;
}

}  // namespace kvasir::sdk
