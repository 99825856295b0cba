// Products of panels on the host; see kernels/cuda/panel_product.h. This shows the layout of panels
// and registers, and who waits for whom, not the instructions: a product is summed in double and
// rounded once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

namespace emulation {

void begin_products();
void commit_products();
void wait_for_products(uint32_t n_left, float (*d)[4], uint32_t n);
// d: [16][4].
void multiply_rows(Product product, bool adds, float (*d)[4], Pointer<const uint16_t> a,
                   Pointer<const uint16_t> b, Site site);
// d: [8][4].
void multiply_columns(Product product, float (*d)[4], const uint32_t (&a)[4],
                      Pointer<const uint16_t> b, Site site);

}  // namespace emulation

// The sums are NaN until they are waited for.
template <uint32_t kN, class... A>
void begin_products(float (&)[kN][4], A&...) {
  emulation::begin_products();
}
inline void commit_products() { emulation::commit_products(); }
template <uint32_t kLeft, uint32_t kN, class... A>
void wait_for_products(float (&d)[kN][4], A&...) {
  emulation::wait_for_products(kLeft, d, kN);
}
template <uint32_t kRegisters>
void take_registers() {}
template <uint32_t kRegisters>
void leave_registers() {}

template <bool kAdds>
void multiply_rows_f16(float (&d)[16][4], Shared<const uint16_t> a, Shared<const uint16_t> b,
                       emulation::Site site = emulation::Site::current()) {
  emulation::multiply_rows(emulation::Product::kF16, kAdds, d, a, b, site);
}
template <bool kAdds>
void multiply_rows_bf16(float (&d)[16][4], Shared<const uint16_t> a, Shared<const uint16_t> b,
                        emulation::Site site = emulation::Site::current()) {
  emulation::multiply_rows(emulation::Product::kBF16, kAdds, d, a, b, site);
}
template <uint32_t kFirst, uint32_t kN>
void multiply_columns_f16(float (&d)[kN][4], const uint32_t (&a)[4], Shared<const uint16_t> b,
                          emulation::Site site = emulation::Site::current()) {
  static_assert(kFirst + 8 <= kN);
  emulation::multiply_columns(emulation::Product::kF16, d + kFirst, a, b, site);
}
template <uint32_t kFirst, uint32_t kN>
void multiply_columns_bf16(float (&d)[kN][4], const uint32_t (&a)[4], Shared<const uint16_t> b,
                           emulation::Site site = emulation::Site::current()) {
  static_assert(kFirst + 8 <= kN);
  emulation::multiply_columns(emulation::Product::kBF16, d + kFirst, a, b, site);
}

}  // namespace kvasir::cuda
