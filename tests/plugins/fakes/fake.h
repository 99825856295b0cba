// What the test plugins share: their description, the probe, the entry.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "tests/plugins/fakes/probe.h"

namespace kvasir::test {

struct FakeTraits {
  uint64_t needs = 0, provides = 0, caps = 0;
  uint64_t dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
                    KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16);
};
constexpr kvasir_desc fake_desc(uint32_t kind, const char* id,
                                std::span<const kvasir_option_schema> options,
                                const FakeTraits& traits = {}) {
  return sdk::describe({.kind = kind,
                        .id = id,
                        .version = "0.1.0",
                        .name = id,
                        .vendor = "Kvasir's tests",
                        .license = "Apache-2.0",
                        .summary = "test material",
                        .options = options,
                        .caps = traits.caps,
                        .needs = traits.needs,
                        .provides = traits.provides,
                        .dtypes = traits.dtypes});
}

// Whether a call is of the sequence; 0: of any.
inline bool names(const sdk::Step& step, uint64_t seq) {
  for (uint32_t r = 0; r < step.n_seqs(); ++r)
    if (step.seq(r).id == seq) return true;
  return seq == 0;
}

// get_extension() of a plugin class with `double probe(uint32_t item)`.
template <class T>
const void* probe_extension(const char* id) {
  static constexpr Probe table = {[](void* self, uint32_t item) noexcept {
    return static_cast<double>(sdk::detail::as<T>(self).probe(item));
  }};
  return std::string_view(id) == kProbeExtension ? &table : nullptr;
}

}  // namespace kvasir::test
