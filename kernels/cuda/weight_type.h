// The element types of weight matrices on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

enum class WeightType : uint32_t {  // GGUF's numbers
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

// fn.template operator()<type>() with the type as a constant; nothing for another number.
template <class Fn>
void for_weight_type(WeightType type, const Fn& fn) {
#define KVASIR_WEIGHT_TYPE(name) \
  case WeightType::name:         \
    return fn.template operator()<WeightType::name>()
  switch (type) {
    KVASIR_WEIGHT_TYPE(kF32);
    KVASIR_WEIGHT_TYPE(kF16);
    KVASIR_WEIGHT_TYPE(kQ4_0);
    KVASIR_WEIGHT_TYPE(kQ4_1);
    KVASIR_WEIGHT_TYPE(kQ5_0);
    KVASIR_WEIGHT_TYPE(kQ5_1);
    KVASIR_WEIGHT_TYPE(kQ8_0);
    KVASIR_WEIGHT_TYPE(kQ2_K);
    KVASIR_WEIGHT_TYPE(kQ3_K);
    KVASIR_WEIGHT_TYPE(kQ4_K);
    KVASIR_WEIGHT_TYPE(kQ5_K);
    KVASIR_WEIGHT_TYPE(kQ6_K);
    KVASIR_WEIGHT_TYPE(kIQ4_NL);
    KVASIR_WEIGHT_TYPE(kBF16);
  }
#undef KVASIR_WEIGHT_TYPE
}

inline bool is_known(WeightType type) {
  bool known = false;
  for_weight_type(type, [&]<WeightType>() { known = true; });
  return known;
}

}  // namespace kvasir::cuda
