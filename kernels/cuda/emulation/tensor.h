// Products of a warp and asynchronous copies on the host; see kernels/cuda/tensor.h. This shows
// their use, not the instructions: a product is summed in double and rounded once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace kvasir::cuda {

namespace emulation {

enum class Product { kF16, kBF16, kTf32 };
void multiply(Product product, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
              Site site);
void load_matrices(uint32_t (&out)[4], Pointer<const uint16_t> row, bool is_transposed, Site site);

}  // namespace emulation

inline void multiply_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         emulation::Site site = emulation::Site::current()) {
  emulation::multiply(emulation::Product::kF16, d, a, b, site);
}
inline void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          emulation::Site site = emulation::Site::current()) {
  emulation::multiply(emulation::Product::kBF16, d, a, b, site);
}
inline void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          emulation::Site site = emulation::Site::current()) {
  emulation::multiply(emulation::Product::kTf32, d, a, b, site);
}

inline void load_matrices(uint32_t (&out)[4], Shared<const uint16_t> row,
                          emulation::Site site = emulation::Site::current()) {
  emulation::load_matrices(out, row, false, site);
}
inline void load_matrices_transposed(uint32_t (&out)[4], Shared<const uint16_t> row,
                                     emulation::Site site = emulation::Site::current()) {
  emulation::load_matrices(out, row, true, site);
}

inline uint32_t transpose_matrix(uint32_t pair, emulation::Site site = emulation::Site::current()) {
  const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
  const uint32_t low = shuffle(kAllLanes, pair, 8 * t + g / 2, site);
  const uint32_t high = shuffle(kAllLanes, pair, 8 * t + 4 + g / 2, site);
  return g % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
}

// Done when it is waited for: until then `to` holds 0xff bytes, and the checker knows who wrote
// them.
template <class T>
void copy_ahead(Shared<T> to, uint64_t from, bool is_there) {
  Bytes16 poison;
  std::memset(&poison, 0xff, sizeof poison);
  to.write(poison);
  const Global<const Bytes16> source = is_there ? global<const Bytes16>(from) : nullptr;
  emulation::Block::running()->later(
      [to, source, is_there] { to.write(is_there ? source.template read<Bytes16>() : Bytes16{}); });
}
inline void commit_copies() { emulation::Block::running()->close_group(); }
template <uint32_t kLeft>
void wait_for_copies() {
  emulation::Block::running()->finish_groups(kLeft);
}

// Rounded to nearest even, as the device does.
uint32_t pack_f16(float low, float high);
uint32_t pack_bf16(float low, float high);
// To nearest, ties away from zero.
inline uint32_t round_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return 0x7fc00000u;
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace kvasir::cuda
