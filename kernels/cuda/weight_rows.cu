// See weight_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_rows.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"
#include "kernels/cuda/weight_piece.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kExpandThreads = 256;

struct Expansion {
  uint64_t from, row_bytes, n_pieces;  // of all rows
  uint64_t to;
  uint32_t n_in, pieces_per_row;
};

// Writes a chunk of a row at `to`, as bf16.
KVASIR_DEVICE void write_chunk(uint64_t to, uint32_t chunk, uint32_t n_in,
                               const float (&x)[kChunk]) {
  Bytes16 out;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk / 2; ++i) out.word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
  const uint32_t begin = kChunk * chunk;
  const uint64_t at = to + uint64_t{2} * begin;
  if (at % sizeof(Bytes16) == 0 && begin + kChunk <= n_in)
    return write_as(global<Bytes16>(at), out);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    if (begin + i < n_in)
      global<uint16_t>(at)[i] = static_cast<uint16_t>(out.word[i / 2] >> (16 * (i % 2)) & 0xffffu);
}

template <WeightType kType>
KVASIR_KERNEL void KVASIR_BOUNDS(kExpandThreads) expand_piece(const Expansion e) {
  const uint64_t index = uint64_t{block_x()} * kExpandThreads + thread_x();
  if (index >= e.n_pieces) return;
  const uint64_t row = index / e.pieces_per_row;
  const auto piece = static_cast<uint32_t>(index % e.pieces_per_row);
  WeightPiece<kType> raw;
  raw.load(e.from + row * e.row_bytes, piece, e.n_in);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < raw.kChunks; ++i) {
    float x[kChunk];
    raw.floats(i, x);
    write_chunk(e.to + 2 * row * e.n_in, raw.chunk(piece, i), e.n_in, x);
  }
}

}  // namespace

void expand_to_bf16(WeightType type, uint64_t from, uint64_t row_bytes, uint64_t n_rows,
                    uint32_t n_in, uint64_t to, Stream stream) {
  for_weight_type(type, [&]<WeightType kType>() {
    constexpr uint32_t kPiece = kChunk * WeightPiece<kType>::kChunks;
    const uint32_t per_row = (n_in + kPiece - 1) / kPiece;
    const Expansion e{from, row_bytes, n_rows * per_row, to, n_in, per_row};
    LaunchShape shape;
    shape.blocks_x = static_cast<uint32_t>((e.n_pieces + kExpandThreads - 1) / kExpandThreads);
    shape.threads = kExpandThreads;
    launch(expand_piece<kType>, shape, stream, e);
  });
}

}  // namespace kvasir::cuda
