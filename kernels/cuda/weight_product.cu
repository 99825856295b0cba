// See weight_product.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_product.h"

#include <cmath>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/weight_piece.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kProductWarps = 4, kProductThreads = kProductWarps * kWarpLanes;

// What a warp takes at once: outputs that share their x, and pieces of each row of weights. More
// rows take more outputs, as x is read for each, and fewer pieces, as their sums take registers.
template <WeightType kType, uint32_t kRows>
struct Step {
  using Piece = WeightPiece<kType>;
  static constexpr uint32_t kOutputs = kRows == 1 ? 2 : 4;
  static constexpr uint32_t kMost = (kRows == 1 ? 4 : 2) / Piece::kChunks;
  static constexpr uint32_t kLeast = kRows == 1 ? 2 : 1;  // one is added while others come
  static constexpr bool kIsWide = kType == WeightType::kF32;
  static constexpr uint32_t kAhead = kIsWide || kMost < kLeast ? kLeast : kMost;
  static constexpr uint32_t kLanesChunks = kWarpLanes * Piece::kChunks;  // of a piece of each lane
  static constexpr uint32_t kLanesElements = kChunk * kLanesChunks;
  static constexpr uint32_t kElements = kAhead * kLanesElements;
  static constexpr uint32_t kQuads = 2 * Piece::kChunks * kAhead;  // of x, per lane
  static constexpr uint32_t kTileFloats = kRows * kQuads * kWarpLanes * 4;
  // Blocks that share a multiprocessor, as registers allow it.
  static constexpr uint32_t kFewRowBlocks = kType == WeightType::kQ5_K ? 2 : 3;
  static constexpr uint32_t kBlocks = kRows == 1 ? 4 : kRows <= 4 ? kFewRowBlocks : 2;
};

// The pieces of this lane, of several rows of weights.
template <class S>
struct Pieces {
  uint64_t rows[S::kOutputs];  // from the present step on
  uint32_t n_left;             // elements
  typename S::Piece raw[S::kOutputs][S::kAhead]{};

  // Piece c of a later step; what lies behind the rows stays what it was, and meets 0 in x.
  KVASIR_DEVICE void load(uint32_t c, uint32_t steps) {
    const uint32_t lanes = steps * S::kAhead + c, begin = lanes * S::kLanesElements;
    const uint32_t n = n_left > begin ? n_left - begin : 0;
    KVASIR_UNROLL
    for (uint32_t o = 0; o < S::kOutputs; ++o)
      raw[o][c].load(rows[o] + lanes * S::Piece::kLanesBytes, thread_x() % kWarpLanes, n);
  }
  KVASIR_DEVICE void advance() {
    KVASIR_UNROLL
    for (uint32_t o = 0; o < S::kOutputs; ++o) rows[o] += S::kAhead * S::Piece::kLanesBytes;
    n_left = n_left > S::kElements ? n_left - S::kElements : 0;
  }
};

// Four elements of a row of x, 0 behind its end.
KVASIR_DEVICE Floats4 load_quad(uint64_t row, uint32_t begin, uint32_t n_in) {
  const uint64_t at = row + uint64_t{4} * begin;
  if (at % sizeof(Floats4) == 0 && begin + 4 <= n_in) return read_constant<Floats4>(at);
  Floats4 out{};
  KVASIR_UNROLL
  for (uint32_t i = 0; i < 4; ++i)
    if (begin + i < n_in) out.at[i] = read_constant<float>(at + uint64_t{4} * i);
  return out;
}

// The x that the pieces of a step meet, from element `begin` on, rows that are none as 0: tile
// [kRows, kQuads, lanes] of four floats, in which neighbouring lanes read neighbouring words.
template <class S>
KVASIR_DEVICE void load_tile(const WeightProduct& p, uint32_t begin, const Shared<float>& tile) {
  const uint32_t lane = thread_x() % kWarpLanes;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < S::kTileFloats / 4 / kProductThreads; ++i) {
    const uint32_t line = i * kProductWarps + thread_x() / kWarpLanes;  // of the tile
    const uint32_t row = line / S::kQuads, quad = line % S::kQuads;
    const uint32_t ahead = quad / 2 / S::Piece::kChunks, c = quad / 2 % S::Piece::kChunks;
    const uint32_t chunk = ahead * S::kLanesChunks + S::Piece::chunk(lane, c);
    Floats4 x{};
    if (row < p.n_rows)
      x = load_quad(p.x + uint64_t{4} * row * p.n_in, begin + kChunk * chunk + 4 * (quad % 2),
                    p.n_in);
    write_as(tile + 4 * (line * kWarpLanes + lane), x);
  }
}

// sums[r][o] += x[r] . w[o] over one chunk, element after element; x at the lane's place in the
// tile.
template <uint32_t kRows, uint32_t kOutputs>
KVASIR_DEVICE void add_chunk(const Shared<float>& tile, uint32_t row_floats,
                             const float (&w)[kOutputs][kChunk], float (&sums)[kRows][kOutputs]) {
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    KVASIR_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t at = r * row_floats + half * 4 * kWarpLanes;
      const auto x = read_as<Floats4>(tile + at);
      KVASIR_UNROLL
      for (uint32_t o = 0; o < kOutputs; ++o) {
        KVASIR_UNROLL
        for (uint32_t i = 0; i < 4; ++i) sums[r][o] = fmaf(x.at[i], w[o][4 * half + i], sums[r][o]);
      }
    }
  }
}

// Adds a step, and loads a piece of the next one as soon as its place is free.
template <class S, uint32_t kRows>
KVASIR_DEVICE void add_step(Pieces<S>& pieces, const Shared<float>& tile,
                            float (&sums)[kRows][S::kOutputs]) {
  KVASIR_UNROLL
  for (uint32_t c = 0; c < S::kAhead; ++c) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < S::Piece::kChunks; ++i) {
      float w[S::kOutputs][kChunk];
      KVASIR_UNROLL
      for (uint32_t o = 0; o < S::kOutputs; ++o) pieces.raw[o][c].floats(i, w[o]);
      if (i + 1 == S::Piece::kChunks) pieces.load(c, 1);
      const uint32_t quad = 2 * (c * S::Piece::kChunks + i);
      const uint32_t at = 4 * (quad * kWarpLanes + thread_x() % kWarpLanes);
      add_chunk(tile + at, S::kTileFloats / kRows, w, sums);
    }
  }
}

// sums[r][o] = x[r] . (the row of weights of output first + o), in all lanes of the warp. A lane
// adds its pieces in order, whatever a step is, then lanes are added: the same for any kRows.
// Tiles are two, so that all threads meet once per step.
template <class S, uint32_t kRows>
KVASIR_DEVICE void multiply_rows(const WeightProduct& p, uint64_t w, uint32_t first_output,
                                 const Shared<float>& tiles, float (&sums)[kRows][S::kOutputs]) {
  Pieces<S> pieces;
  pieces.n_left = p.n_in;
  KVASIR_UNROLL
  for (uint32_t o = 0; o < S::kOutputs; ++o) {  // the last one stands for those that are none
    const uint32_t output = first_output + o < p.n_out ? first_output + o : p.n_out - 1;
    pieces.rows[o] = w + p.row_bytes * output;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) sums[r][o] = 0.0f;
  }
  KVASIR_UNROLL
  for (uint32_t c = 0; c < S::kAhead; ++c) pieces.load(c, 0);
  uint32_t side = 0;
  for (uint32_t begin = 0; begin < p.n_in; begin += S::kElements) {
    const Shared<float> tile = tiles + side * S::kTileFloats;
    load_tile<S>(p, begin, tile);
    block_sync();
    add_step(pieces, tile, sums);
    pieces.advance();
    side ^= 1;
  }
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    KVASIR_UNROLL
    for (uint32_t o = 0; o < S::kOutputs; ++o)
      for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
        sums[r][o] += shuffle_xor(kAllLanes, sums[r][o], lanes);
  }
}

// The sum that this lane writes: that of row lane / kOutputs and output lane % kOutputs.
template <uint32_t kRows, uint32_t kOutputs>
KVASIR_DEVICE float sum_of_lane(const float (&sums)[kRows][kOutputs]) {
  static_assert(kRows * kOutputs <= kWarpLanes);
  float out = 0.0f;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kRows * kOutputs; ++i)
    if (thread_x() % kWarpLanes == i) out = sums[i / kOutputs][i % kOutputs];
  return out;
}

template <WeightType kType, uint32_t kRows>
KVASIR_KERNEL void KVASIR_BOUNDS_TOGETHER(kProductThreads, (Step<kType, kRows>::kBlocks))
    multiply_outputs(const WeightProduct p) {
  using S = Step<kType, kRows>;
  SharedMemory memory;
  const Shared<float> tiles = memory.take<float>(2 * S::kTileFloats);
  const uint32_t warp = block_x() * kProductWarps + thread_x() / kWarpLanes;
  const uint32_t first_output = warp * S::kOutputs, lane = thread_x() % kWarpLanes;
  float sums[kRows][S::kOutputs];
  multiply_rows<S>(p, p.w, first_output, tiles, sums);
  const float sum = sum_of_lane(sums);
  float up = 0.0f;
  if (p.up) {
    block_sync();  // tiles are read
    multiply_rows<S>(p, p.up, first_output, tiles, sums);
    up = sum_of_lane(sums);
  }
  const uint32_t row = lane / S::kOutputs, output = first_output + lane % S::kOutputs;
  if (row >= p.n_rows || output >= p.n_out) return;
  const Global<float> y = global<float>(p.y + 4 * (uint64_t{row} * p.n_out + output));
  const float bias = p.bias ? load_at<float>(p.bias + uint64_t{4} * output) : 0.0f;
  if (p.up)
    *y = activate(p.gate, sum) * up;
  else
    *y = p.accumulates ? *y + (sum + bias) : sum + bias;
}

template <WeightType kType, uint32_t kRows>
void launch_product(const WeightProduct& product, Stream stream) {
  using S = Step<kType, kRows>;
  constexpr uint32_t kBlockOutputs = kProductWarps * S::kOutputs;
  SharedSize shared;
  shared.add<float>(2 * S::kTileFloats);
  LaunchShape shape;
  shape.blocks_x = (product.n_out + kBlockOutputs - 1) / kBlockOutputs;
  shape.threads = kProductThreads;
  shape.shared_bytes = shared.bytes;
  launch(multiply_outputs<kType, kRows>, shape, stream, product);
}

}  // namespace

void weight_product(const WeightProduct& product, Stream stream) {
  if (product.n_rows == 0) return;
  for_weight_type(product.type, [&]<WeightType kType>() {
    if (product.n_rows == 1) return launch_product<kType, 1>(product, stream);
    if (product.n_rows <= 4) return launch_product<kType, 4>(product, stream);
    launch_product<kType, kMostProductRows>(product, stream);
  });
}

}  // namespace kvasir::cuda
