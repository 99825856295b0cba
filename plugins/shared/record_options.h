// Options that representatives have in common, wherever their records lie.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/options.h>

#include <cstdint>

namespace kvasir::sdk {

inline constexpr const char* kNumberAliases[] = {"anchor_num", nullptr};

// Of a method that always takes the same number of vectors: another number is refused.
constexpr kvasir_option_schema fixed_number_option(const char* help, int64_t n) {
  return int_option({.key = "representative_num", .help = help, .aliases = kNumberAliases}, n, 1,
                    n);
}

inline constexpr kvasir_option_schema kBoxScaleOption =
    float_option({.key = "box_scale",
                  .help = "length of the sides of the box that is scored: 1 = the block's own, "
                          "whose score is a bound; 0 = its centre alone"},
                 1.0, 0.0, 1.0);

// kvasir_layout.format of records of n vectors of one KVASIR_DTYPE_*.
constexpr uint64_t record_format(uint32_t n_vectors, uint32_t dtype) {
  return uint64_t{1} << 48 | uint64_t{n_vectors} << 8 | dtype;
}

}  // namespace kvasir::sdk
