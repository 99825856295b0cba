// Reading attention mass.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/step.h>

#include <cstdint>
#include <string>

#include "plugins/sdk/error.h"

namespace kvasir::sdk {

// The host handed over one row per sequence and head, as limits() asked, in tokens and with values.
inline void check_mass(const kvasir_mass& mass, uint32_t n_rows) {
  if (mass.unit == KVASIR_UNIT_TOKEN && mass.n_rows == n_rows && mass.row_offsets && mass.value) {
    return;
  }
  fail_invalid("observe: " + std::to_string(mass.n_rows) + " rows of attention mass came, " +
               std::to_string(n_rows) + " rows of tokens were asked for");
}

// fn(token, mass) for each token of a row, ascending.
template <class Fn>
void for_each_mass(const kvasir_mass& mass, uint64_t row, Fn&& fn) {
  const uint64_t begin = mass.row_offsets[row];
  for (uint64_t i = begin; i < mass.row_offsets[row + 1]; ++i) {
    fn(mass.index ? mass.index[i] : static_cast<uint32_t>(i - begin), mass.value[i]);
  }
}

}  // namespace kvasir::sdk
