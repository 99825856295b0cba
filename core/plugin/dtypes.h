// Element types of the ABI: their names, and what their rows take.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

// Names of a set of KVASIR_DTYPE_BIT, as storage.type_k spells them; what this host does not know
// by its number.
std::vector<std::string> dtype_names(uint64_t dtypes);

// "f32, f16 or bf16"
std::string dtype_list(uint64_t dtypes);

// Of a known type of K and V: elements that cannot be stored without their neighbours, and the
// bytes of a row of n elements, a multiple of these.
uint32_t group_elements(uint32_t dtype);
uint64_t row_bytes(uint32_t dtype, uint32_t n);

}  // namespace kvasir
