// See stream_read.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stream_read.h"

#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kReadThreads = 256, kReadsAhead = 4;

KVASIR_KERNEL void KVASIR_BOUNDS(kReadThreads)
    read_words(Global<const Bytes16> from, uint64_t n, Global<uint32_t> sums) {
  KVASIR_SHARED(uint32_t, total, 1);
  if (thread_x() == 0) total[0] = 0;
  block_sync();
  const uint64_t n_threads = uint64_t{blocks_x()} * kReadThreads;
  uint32_t sum = 0;
  for (uint64_t at = uint64_t{block_x()} * kReadThreads + thread_x(); at < n;
       at += n_threads * kReadsAhead) {
    Bytes16 read[kReadsAhead]{};
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kReadsAhead; ++i)
      if (at + i * n_threads < n) read[i] = read_as<Bytes16>(from + at + i * n_threads);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kReadsAhead; ++i)
      sum += read[i].word[0] + read[i].word[1] + read[i].word[2] + read[i].word[3];
  }
  atomic_add(total, sum);
  block_sync();
  if (thread_x() == 0) sums[block_x()] = total[0];
}

KVASIR_KERNEL void KVASIR_BOUNDS(kReadThreads)
    write_words(Global<uint32_t> to, uint64_t n, uint32_t word, uint32_t random_bits) {
  for (uint64_t at = uint64_t{block_x()} * kReadThreads + thread_x(); at < n;
       at += uint64_t{blocks_x()} * kReadThreads) {
    uint32_t bits = static_cast<uint32_t>(at) * 0x9e3779b1u;
    bits = (bits ^ bits >> 15) * 0x85ebca6bu;
    to[at] = word ^ ((bits ^ bits >> 13) & random_bits);
  }
}

}  // namespace

void read_all(const void* from, uint64_t bytes, void* sums, Stream stream) {
  launch(read_words, {.blocks_x = kReadBlocks, .threads = kReadThreads}, stream,
         Global<const Bytes16>(static_cast<const Bytes16*>(from)), bytes / sizeof(Bytes16),
         Global<uint32_t>(static_cast<uint32_t*>(sums)));
}

void fill_words(void* to, uint64_t n, uint32_t word, uint32_t random_bits, Stream stream) {
  launch(write_words, {.blocks_x = kReadBlocks, .threads = kReadThreads}, stream,
         Global<uint32_t>(static_cast<uint32_t*>(to)), n, word, random_bits);
}

}  // namespace kvasir::cuda
