// See dtypes.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/dtypes.h"

#include <kvasir/types.h>

#include <array>

#include "kernels/element_type.h"

namespace kvasir {
namespace {

constexpr std::array<const char*, 7> kNames = {nullptr, "f32",  "f16",     "bf16",
                                               "q8_0",  "q4_0", "fp8_e4m3"};
static_assert(KVASIR_DTYPE_FP8_E4M3 + 1 == kNames.size());

}  // namespace

std::vector<std::string> dtype_names(uint64_t dtypes) {
  std::vector<std::string> names;
  for (uint32_t dtype = 0; dtype < 64; ++dtype) {
    if (!(dtypes >> dtype & 1)) continue;
    const bool is_known = dtype < kNames.size() && kNames[dtype];
    names.push_back(is_known ? kNames[dtype] : "type " + std::to_string(dtype));
  }
  return names;
}

std::string dtype_list(uint64_t dtypes) {
  const std::vector<std::string> names = dtype_names(dtypes);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

// The kernels number their types as the ABI does (core/runtime/blocks/element_type.h).
uint32_t group_elements(uint32_t dtype) {
  return static_cast<uint32_t>(kernels::group_elements(static_cast<kernels::ElementType>(dtype)));
}

uint64_t row_bytes(uint32_t dtype, uint32_t n) {
  return kernels::row_bytes(static_cast<kernels::ElementType>(dtype), n);
}

}  // namespace kvasir
