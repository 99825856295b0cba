// The element types of tensors in a GGUF, and the size of their blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

enum class GgmlType : uint32_t {  // the file format's own numbers
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kBF16 = 30,
};
const char* name(GgmlType type);  // "Q4_K"; "type 99" when unknown
bool is_supported(GgmlType type);
uint32_t block_elements(GgmlType type);  // elements per quantisation block, 1 for plain
uint32_t block_bytes(GgmlType type);
std::optional<GgmlType> ggml_type_by_name(std::string_view name);

}  // namespace kvasir
