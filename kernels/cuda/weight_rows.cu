// See weight_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_rows.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"
#include "kernels/cuda/weight_chunk.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kExpandThreads = 256;

struct Expansion {
  uint64_t from, row_bytes, n_chunks;  // of all rows
  uint64_t to;
  uint32_t n_in, chunks_per_row;
};

template <WeightType kType>
KVASIR_KERNEL void KVASIR_BOUNDS(kExpandThreads) expand_chunk(const Expansion e) {
  const uint64_t index = uint64_t{block_x()} * kExpandThreads + thread_x();
  if (index >= e.n_chunks) return;
  const uint64_t row = index / e.chunks_per_row;
  const auto chunk = static_cast<uint32_t>(index % e.chunks_per_row);
  WeightChunk<kType> raw;
  raw.load(e.from + row * e.row_bytes, chunk, e.n_in);
  float x[kChunk];
  raw.floats(x);
  Bytes16 out;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk / 2; ++i) out.word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
  const uint32_t begin = kChunk * chunk;
  const uint64_t at = e.to + 2 * (row * e.n_in + begin);
  if (at % sizeof(Bytes16) == 0 && begin + kChunk <= e.n_in)
    return write_as(global<Bytes16>(at), out);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    if (begin + i < e.n_in)
      global<uint16_t>(at)[i] = static_cast<uint16_t>(out.word[i / 2] >> (16 * (i % 2)) & 0xffffu);
}

}  // namespace

void expand_to_bf16(WeightType type, uint64_t from, uint64_t row_bytes, uint64_t n_rows,
                    uint32_t n_in, uint64_t to, Stream stream) {
  const uint32_t chunks_per_row = (n_in + kChunk - 1) / kChunk;
  const Expansion e{from, row_bytes, n_rows * chunks_per_row, to, n_in, chunks_per_row};
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>((e.n_chunks + kExpandThreads - 1) / kExpandThreads);
  shape.threads = kExpandThreads;
  for_weight_type(type, [&]<WeightType kType>() { launch(expand_chunk<kType>, shape, stream, e); });
}

}  // namespace kvasir::cuda
