// See block_records.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/block_records.h"

#include <cmath>

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kBuildThreads = 128;

// x moved so that rounding to f16 does not end above it (sign = -1) or below it (sign = +1), and
// kept finite. Rounding moves by at most half a step: 2^-11 of |x|, or 2^-25 among subnormals.
KVASIR_DEVICE float outwards(float x, float sign) {
  constexpr float kLargest = 65504.0f;
  const float stored = half_to_float(pack_f16(x, 0.0f) & 0xffffu);
  const float margin = fmaxf(fabsf(x) * 0x1p-11f, 0x1p-25f);
  const float safe = stored == x ? x : x + sign * margin;
  return fminf(kLargest, fmaxf(-kLargest, safe));
}

// Elements [8 * chunk, 8 * chunk + 8) of a record's row of `dim` elements, as far as it has them.
KVASIR_DEVICE void store_chunk(KvType type, const float (&x)[kChunk], uint64_t row, uint32_t chunk,
                               uint32_t dim) {
  const uint32_t begin = kChunk * chunk;
  const uint64_t at = row + uint64_t{begin} * (type == KvType::kF32 ? 4 : 2);
  const bool is_whole = at % sizeof(Bytes16) == 0 && begin + kChunk <= dim;
  if (type == KvType::kF32) {
    if (is_whole) {
      write_as(global<float>(at), Floats4{x[0], x[1], x[2], x[3]});
      write_as(global<float>(at) + 4u, Floats4{x[4], x[5], x[6], x[7]});
      return;
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      if (begin + i < dim) global<float>(at)[i] = x[i];
    return;
  }
  Bytes16 half;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk / 2; ++i) half.word[i] = pack_f16(x[2 * i], x[2 * i + 1]);
  if (is_whole) return write_as(global<uint16_t>(at), half);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    if (begin + i < dim)
      global<uint16_t>(at)[i] = static_cast<uint16_t>(half.word[i / 2] >> (16 * (i % 2)) & 0xffffu);
}

template <RecordKind kKind>
struct ChannelSums;

template <>
struct ChannelSums<RecordKind::kMinMax> {
  float low[kChunk], high[kChunk];

  KVASIR_DEVICE void clear() {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      low[i] = INFINITY;
      high[i] = -INFINITY;
    }
  }
  KVASIR_DEVICE void add(const float (&k)[kChunk]) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      low[i] = fminf(low[i], k[i]);
      high[i] = fmaxf(high[i], k[i]);
    }
  }
  KVASIR_DEVICE void store(const RecordBuild& call, const RecordBlock& block, uint32_t chunk) {
    const bool is_half = call.record_type == KvType::kF16;
    if (is_half) {
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        low[i] = outwards(low[i], -1.0f);
        high[i] = outwards(high[i], 1.0f);
      }
    }
    const uint64_t maxima = block.record + uint64_t{call.head_dim} * (is_half ? 2 : 4);
    store_chunk(call.record_type, low, block.record, chunk, call.head_dim);
    store_chunk(call.record_type, high, maxima, chunk, call.head_dim);
  }
};

template <>
struct ChannelSums<RecordKind::kMean> {
  float sum[kChunk];

  KVASIR_DEVICE void clear() {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) sum[i] = 0.0f;
  }
  KVASIR_DEVICE void add(const float (&k)[kChunk]) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) sum[i] += k[i];
  }
  KVASIR_DEVICE void store(const RecordBuild& call, const RecordBlock& block, uint32_t chunk) {
    const float factor = 1.0f / static_cast<float>(block.n_tokens);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) sum[i] *= factor;
    store_chunk(call.record_type, sum, block.record, chunk, call.head_dim);
  }
};

template <KvType kKey, RecordKind kKind>
KVASIR_KERNEL void KVASIR_BOUNDS(kBuildThreads) build_chunks(const RecordBuild call) {
  const uint32_t n_chunks = (call.head_dim + kChunk - 1) / kChunk;
  const uint64_t at = uint64_t{block_x()} * kBuildThreads + thread_x(), index = at / n_chunks;
  if (index >= call.n_blocks) return;
  const auto chunk = static_cast<uint32_t>(at % n_chunks);
  const auto block = load_at<RecordBlock>(call.blocks + sizeof(RecordBlock) * index);
  const auto type = static_cast<uint32_t>(block.type);
  constexpr uint32_t kAhead = kLoadsAhead<kKey>;
  ChannelSums<kKind> sums;
  sums.clear();
  for (uint32_t first = 0; first < block.n_tokens; first += kAhead) {
    KvChunk<kKey> raw[kAhead];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i)
      if (first + i < block.n_tokens)
        load_chunk(raw[i], type, block.k + (first + i) * block.k_token_stride, chunk,
                   call.head_dim);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= block.n_tokens) continue;
      float k[kChunk];
      raw[i].floats(k);
      sums.add(k);
    }
  }
  sums.store(call, block, chunk);
}

template <KvType kKey>
void launch_type(const RecordBuild& call, Stream stream) {
  const uint64_t n_chunks = (call.head_dim + kChunk - 1) / kChunk;
  LaunchShape shape;
  shape.blocks_x =
      static_cast<uint32_t>((n_chunks * call.n_blocks + kBuildThreads - 1) / kBuildThreads);
  shape.threads = kBuildThreads;
  if (call.kind == RecordKind::kMinMax) {
    launch(build_chunks<kKey, RecordKind::kMinMax>, shape, stream, call);
  } else {
    launch(build_chunks<kKey, RecordKind::kMean>, shape, stream, call);
  }
}

}  // namespace

void build_records(const RecordBuild& call, Stream stream) {
  if (call.key_type == KvType::kF16) return launch_type<KvType::kF16>(call, stream);
  if (call.key_type == KvType::kBF16) return launch_type<KvType::kBF16>(call, stream);
  launch_type<KvType::kMixed>(call, stream);
}

}  // namespace kvasir::cuda
