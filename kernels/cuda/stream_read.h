// How fast a device reads its memory: what every benchmark of a kernel is held against.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

inline constexpr uint32_t kReadBlocks = 1056;  // 8 per multiprocessor of an H100

// Reads bytes / 16 * 16 bytes once, 16 at a time, neighbouring lanes neighbouring bytes. sums
// [kReadBlocks] u32, written: the sum of the words that each block of threads read, modulo 2^32.
void read_all(const void* from, uint64_t bytes, void* sums, Stream stream);

// Each of the n words at `to` becomes `word`, of which `random_bits` are random, the same each
// time.
void fill_words(void* to, uint64_t n, uint32_t word, uint32_t random_bits, Stream stream);

// Two numbers of f16 or bf16, of random signs and parts behind the point: tensor cores are faster
// on numbers that are all the same.
inline constexpr uint32_t kHalfPair = 0x2c002c00u, kRandomHalfPair = 0x83ff83ffu;

}  // namespace kvasir::cuda
