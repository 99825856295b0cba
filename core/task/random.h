// Draws that are the same on every machine: std::mt19937_64 is fixed by the standard, the
// distributions of <random> are not, so the mapping to integers is our own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace kvasir {

// Seeds below belong to evaluation, from here on to training. The two never share the state of a
// generator: the highest bit of a stream's state says which side it is on.
inline constexpr uint64_t kFirstTrainingSeed = uint64_t{1} << 32;

class TaskRandom {
 public:
  explicit TaskRandom(uint64_t state) : bits_(state) {}
  // The stream of one sample: user's seed, and what tells samples of one seed apart.
  static uint64_t state_of(uint64_t seed, uint64_t task, uint64_t index) {
    const uint64_t mixed = mix(mix(mix(seed) ^ task) ^ index);
    const uint64_t side = seed >= kFirstTrainingSeed ? uint64_t{1} << 63 : 0;
    return (mixed >> 1) | side;
  }

  // Uniform in [0, n), n > 0: values above the last whole multiple of n are drawn again.
  uint64_t below(uint64_t n) {
    const uint64_t limit = UINT64_MAX - (UINT64_MAX % n + 1) % n;
    for (;;) {
      const uint64_t x = bits_();
      if (x <= limit) return x % n;
    }
  }
  uint32_t between(uint32_t first, uint32_t last) {  // both included
    return first + static_cast<uint32_t>(below(uint64_t{last} - first + 1));
  }
  bool chance(uint32_t one_in) { return below(one_in) == 0; }
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // [0, 1)
  template <class T>
  const T& pick(std::span<const T> from) {
    return from[below(from.size())];
  }
  template <class T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  // Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64): a bijection.
  static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  std::mt19937_64 bits_;
};

}  // namespace kvasir
