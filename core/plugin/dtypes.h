// Element types by name.
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

}  // namespace kvasir
