// Element types of stored K and V rows and of representative records.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

enum class ElementType : uint32_t {
  kF32,
  kF16,   // IEEE 754 binary16
  kBF16,  // the upper half of a binary32
};

constexpr size_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

}  // namespace kvasir::kernels
