// The language of kernels on the host; see kernels/cuda/device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/emulation/pointer.h"

#define KVASIR_KERNEL
#define KVASIR_DEVICE inline
#define KVASIR_HOST_DEVICE inline
#define KVASIR_BOUNDS(threads)
#define KVASIR_BOUNDS_TOGETHER(threads, blocks)
#define KVASIR_UNROLL
#define KVASIR_NO_UNROLL
#define KVASIR_SHARED(T, name, n)                                                                \
  const ::kvasir::cuda::Shared<T> name = ::kvasir::cuda::emulation::as_array<T>(                 \
      ::kvasir::cuda::emulation::Block::running()->static_array(std::source_location::current(), \
                                                                (n) * sizeof(T)))

namespace kvasir::cuda {

namespace emulation {

template <class T>
Pointer<T> as_array(Region& region) {
  return {reinterpret_cast<T*>(region.begin()), &region};
}

template <class T>
uint64_t to_bits(const T& value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulation

inline uint32_t thread_x() { return emulation::Block::running()->thread(); }
inline uint32_t threads_x() { return emulation::Block::running()->n_threads(); }
inline uint32_t block_x() { return emulation::Block::running()->index().x; }
inline uint32_t block_y() { return emulation::Block::running()->index().y; }
inline uint32_t blocks_x() { return emulation::Block::running()->grid().x; }

inline void block_sync(emulation::Site site = emulation::Site::current()) {
  emulation::Block::running()->barrier(site);
}
inline void warp_sync(uint32_t mask = kAllLanes,
                      emulation::Site site = emulation::Site::current()) {
  emulation::Block::running()->meet(emulation::Meeting::kBarrier, mask, 0, site);
}

// The value of lane `lane`, of those in `mask`.
template <class T>
T shuffle(uint32_t mask, T value, uint32_t lane,
          emulation::Site site = emulation::Site::current()) {
  emulation::Block& block = *emulation::Block::running();
  block.meet(emulation::Meeting::kExchange, mask, emulation::to_bits(value), site);
  return emulation::from_bits<T>(block.exchanged(lane % kWarpLanes));
}
template <class T>
T shuffle_xor(uint32_t mask, T value, uint32_t lanes,
              emulation::Site site = emulation::Site::current()) {
  return shuffle(mask, value, (thread_x() % kWarpLanes) ^ lanes, site);
}
// Bit l: whether the condition holds in lane l of those in `mask`.
inline uint32_t ballot(uint32_t mask, bool condition,
                       emulation::Site site = emulation::Site::current()) {
  emulation::Block& block = *emulation::Block::running();
  block.meet(emulation::Meeting::kExchange, mask, condition ? 1 : 0, site);
  uint32_t bits = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane)
    if (mask >> lane & 1u) bits |= static_cast<uint32_t>(block.exchanged(lane)) << lane;
  return bits;
}

// Returns what was there.
template <class T>
T atomic_add(emulation::Pointer<T> at, T value) {
  at.check(sizeof(T), alignof(T), emulation::Touch::kAtomic);
  const T before = *at.raw();
  *at.raw() = before + value;
  return before;
}

template <class T>
Global<T> global(uint64_t address) {
  return Global<T>(std::bit_cast<void*>(address));
}
// The same address as another type.
template <class U, class T>
emulation::Pointer<U> cast(emulation::Pointer<T> at) {
  return {reinterpret_cast<U*>(at.raw()), at.region()};
}
// alignof(V)-aligned bytes in one access.
template <class V, class T>
V read_as(emulation::Pointer<T> at) {
  return at.template read<V>();
}
// Of global memory that no thread writes while the kernel runs.
template <class V>
V read_constant(uint64_t address) {
  return read_as<V>(global<const V>(address));
}
template <class V, class T>
void write_as(emulation::Pointer<T> at, const V& value) {
  at.write(value);
}

class SharedMemory {
 public:
  template <class T>
  Shared<T> take(uint32_t n) {
    return emulation::as_array<T>(
        emulation::Block::running()->dynamic_array(n_taken_++, uint64_t{n} * sizeof(T)));
  }
  Shared<uint16_t> take_panels(uint32_t n) {
    return emulation::as_array<uint16_t>(emulation::Block::running()->dynamic_array(
        n_taken_++, uint64_t{n} * kPanelBytes, kPanelAlignment));
  }

 private:
  uint32_t n_taken_ = 0;
};

inline float round_product(float x, float y) { return x * y; }
inline float power_of_2(float x) { return std::exp2(x); }
inline uint32_t count_bits(uint32_t x) { return static_cast<uint32_t>(std::popcount(x)); }
inline float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t float_to_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> bits % 32);
}
// Byte i is that byte of the eight which digit i of the selector names.
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  return out;
}

// IEEE binary16, exactly.
inline float half_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u,
                 fraction = bits & 1023u;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return bits_to_float(sign | (exponent + 112u) << 23 | fraction << 13);
  const float value = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -value : value;
}

}  // namespace kvasir::cuda
