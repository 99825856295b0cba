// See attention_decode_tensor.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_decode_tensor.h"

#include "kernels/cuda/decode_unit.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kPart = 16;  // keys of a product
constexpr uint32_t kQuad = 4;   // query heads of a product's eight columns
constexpr uint32_t kWarpTiles = kTilesOfSplit / kWarps;
// Weights of f16 grow by 2^14, so that the numbers that stand for a small one are no subnormals.
constexpr float kWeightScale = 16384.0f;

// A number of f32 as a sum of numbers of the type of K and V: of f16 two, of 11 bits each, of bf16
// three of 8. They lie in pairs, since lane (g, t) of a product has two columns: those of head t.
template <KvType kType>
struct Limbs {
  static constexpr bool kIsF16 = kType == KvType::kF16;
  static constexpr uint32_t kPairs = kIsF16 ? 1 : 2;
  uint32_t pair[kPairs];

  KVASIR_DEVICE void split(float x) {
    if constexpr (kIsF16) {
      const float high = half_to_float(pack_f16(x, 0.0f) & 0xffffu);
      pair[0] = pack_f16(high, x - high);
    } else {
      const float high = round_bf16(x), middle = round_bf16(x - high);
      pair[0] = pack_bf16(high, middle);
      pair[1] = pack_bf16(x - high - middle, 0.0f);
    }
  }
  // The number of limb `i`, in the lower half.
  KVASIR_DEVICE uint32_t limb(uint32_t i) const {
    return (i & 1u) != 0 ? pair[i / 2] >> 16 : pair[i / 2] & 0xffffu;
  }

 private:
  KVASIR_DEVICE static float round_bf16(float x) { return bits_to_float(pack_bf16(x, 0.0f) << 16); }
};

template <KvType kType>
KVASIR_DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kType == KvType::kF16) {
    multiply_f16(d, a, b);
  } else {
    multiply_bf16(d, a, b);
  }
}

// The power of two that brings the largest magnitude of f16 queries to [2^14, 2^15); 1 where there
// is none, or it is not finite.
KVASIR_DEVICE float scale_of_largest(float largest) {
  const uint32_t exponent = float_to_bits(largest) >> 23 & 0xffu;
  if (exponent == 0 || exponent == 0xffu) return 1.0f;
  const uint32_t raised = 2 * 127 + 14 - exponent;  // of 2^(14 - e)
  return bits_to_float((raised < 254u ? raised : 254u) << 23);
}

// Queries as B of K Q^T: column g of a product has limb g % 2 of head g / 2. Element 2 i (+ 1) of
// b[..] is that of a chunk of K that the lane multiplies.
template <KvType kType, uint32_t kDim>
struct QuadQueries {
  static constexpr uint32_t kPairs = Limbs<kType>::kPairs;
  uint32_t b[kPairs][kDim / 16][2];
  float unscale;  // of the dots of head t

  KVASIR_DEVICE void load(const AttentionShape& shape, const AttentionPart& part, uint32_t query,
                          uint32_t kv_head, uint32_t first_head) {
    const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
    const uint32_t group = shape.n_q_heads / shape.n_kv_heads, of_group = first_head + g / 2;
    const uint64_t head = uint64_t{kv_head} * group + of_group;
    const uint64_t row = part.q + 4 * (query * part.q_stride + head * kDim);
    float x[kDim / 4], largest = 0.0f;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kDim / 4; ++i) {
      const uint32_t d = kChunk * (t + 4 * (i / kChunk)) + i % kChunk;
      x[i] = of_group < group ? load_at<float>(row + uint64_t{4} * d) : 0.0f;
      largest = fmaxf(largest, fabsf(x[i]));
    }
    float scale = 1.0f;
    if constexpr (Limbs<kType>::kIsF16) {
      largest = fmaxf(largest, shuffle_xor(kAllLanes, largest, 1));
      largest = fmaxf(largest, shuffle_xor(kAllLanes, largest, 2));
      scale = scale_of_largest(largest);
    }
    unscale = 1.0f / shuffle(kAllLanes, scale, 8 * t);  // column 2 t is of head t
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kDim / 4; i += 2) {
      Limbs<kType> low, high;
      low.split(x[i] * scale);
      high.split(x[i + 1] * scale);
      KVASIR_UNROLL
      for (uint32_t p = 0; p < kPairs; ++p)
        b[p][i / 4][i / 2 % 2] = low.limb(2 * p + g % 2) | high.limb(2 * p + g % 2) << 16;
    }
  }
};

// 16 bytes at the chunk of a row; rows that are aligned to less are read element by element.
template <KvType kType>
KVASIR_DEVICE Bytes16 load_row_chunk(bool is_aligned, uint64_t row, uint32_t chunk) {
  if (is_aligned) return load_at<Bytes16>(row + uint64_t{2} * kChunk * chunk);
  KvChunk<kType> raw;
  raw.load(row, chunk, UINT32_MAX);
  return raw.bits;
}

// The lane's chunks of rows g and g + 8 of 16 keys of K: chunks t, t + 4, ...
template <KvType kType, uint32_t kDim>
struct KeyPart {
  Bytes16 raw[2][kDim / 32];

  KVASIR_DEVICE void load(bool is_aligned, uint64_t row_of_lane, uint32_t first) {
    const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      const uint64_t row = shuffle(kAllLanes, row_of_lane, first + g + 8 * r);
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kDim / 32; ++i)
        raw[r][i] = load_row_chunk<kType>(is_aligned, row, t + 4 * i);
    }
  }
  // dots[0], [1]: of keys g and g + 8 with head t.
  KVASIR_DEVICE void multiply_queries(const QuadQueries<kType, kDim>& q, float (&dots)[2]) const {
    dots[0] = dots[1] = 0.0f;
    KVASIR_UNROLL
    for (uint32_t p = 0; p < q.kPairs; ++p) {
      float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kDim / 16; ++i) {
        const uint32_t(&x)[4] = raw[0][i / 2].word;
        const uint32_t(&y)[4] = raw[1][i / 2].word;
        const uint32_t at = i % 2 * 2;
        const uint32_t a[4] = {x[at], y[at], x[at + 1], y[at + 1]};
        multiply<kType>(d, a, q.b[p][i]);
      }
      dots[0] += d[0] + d[1];
      dots[1] += d[2] + d[3];
    }
    dots[0] *= q.unscale;
    dots[1] *= q.unscale;
  }
};

// The lane's chunks of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16 keys of V: chunks g, g + 8, ...
template <KvType kType, uint32_t kDim>
struct ValuePart {
  Bytes16 raw[4][kDim / 64];

  KVASIR_DEVICE void load(bool is_aligned, uint64_t row_of_lane, uint32_t first) {
    const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 4; ++r) {
      const uint64_t row = shuffle(kAllLanes, row_of_lane, first + 2 * t + r % 2 + r / 2 * 8);
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kDim / 64; ++i)
        raw[r][i] = load_row_chunk<kType>(is_aligned, row, g + 8 * i);
    }
  }
  // Element e of the lane's chunks, of keys 2 t + 8 upper and the one behind it.
  KVASIR_DEVICE uint32_t pair(uint32_t e, uint32_t upper) const {
    const uint32_t x = raw[2 * upper][e / kChunk].word[e / 2 % 4];
    const uint32_t y = raw[2 * upper + 1][e / kChunk].word[e / 2 % 4];
    return e % 2 == 0 ? (x & 0xffffu) | y << 16 : x >> 16 | (y & 0xffff0000u);
  }
};

// Of head t of a quad and the lane's keys; o: elements e and e + kDim / 16 of its chunks of V, as
// V^T P^T has them.
template <KvType kType, uint32_t kDim>
struct QuadState {
  static constexpr uint32_t kPairs = Limbs<kType>::kPairs;
  float o[kPairs][kDim / 16][4];
  float high, sum;

  KVASIR_DEVICE void clear() {
    high = minus_infinity();
    sum = 0.0f;
    KVASIR_UNROLL
    for (uint32_t p = 0; p < kPairs; ++p) {
      KVASIR_UNROLL
      for (uint32_t j = 0; j < kDim / 16; ++j) {
        KVASIR_UNROLL
        for (uint32_t i = 0; i < 4; ++i) o[p][j][i] = 0.0f;
      }
    }
  }

  // Logits become exp(logit - high) with the new high, as B of V^T P^T.
  KVASIR_DEVICE void weigh(const float (&logits)[2], uint32_t (&b)[kPairs][2]) {
    float highest = fmaxf(logits[0], logits[1]);
    for (uint32_t lanes = 4; lanes < kWarpLanes; lanes *= 2)
      highest = fmaxf(highest, shuffle_xor(kAllLanes, highest, lanes));
    highest = fmaxf(highest, high);
    const float keep = high == minus_infinity() ? 0.0f : expf(high - highest);
    high = highest;
    sum *= keep;
    KVASIR_UNROLL
    for (uint32_t p = 0; p < kPairs; ++p) {
      KVASIR_UNROLL
      for (uint32_t j = 0; j < kDim / 16; ++j) {
        KVASIR_UNROLL
        for (uint32_t i = 0; i < 4; ++i) o[p][j][i] *= keep;
      }
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const float weight = logits[i] == minus_infinity() ? 0.0f : expf(logits[i] - highest);
      sum += weight;
      Limbs<kType> limbs;
      limbs.split(Limbs<kType>::kIsF16 ? weight * kWeightScale : weight);
      KVASIR_UNROLL
      for (uint32_t p = 0; p < kPairs; ++p) b[p][i] = transpose_matrix(limbs.pair[p]);
    }
  }

  KVASIR_DEVICE void add_values(const ValuePart<kType, kDim>& v, const uint32_t (&b)[kPairs][2]) {
    KVASIR_UNROLL
    for (uint32_t j = 0; j < kDim / 16; ++j) {
      const uint32_t e = j + kDim / 16;
      const uint32_t a[4] = {v.pair(j, 0), v.pair(e, 0), v.pair(j, 1), v.pair(e, 1)};
      KVASIR_UNROLL
      for (uint32_t p = 0; p < kPairs; ++p) multiply<kType>(o[p][j], a, b[p]);
    }
  }

  // Sum of element e of the lane's chunks.
  KVASIR_DEVICE float element(uint32_t e) const {
    const uint32_t j = e % (kDim / 16), at = e / (kDim / 16) * 2;
    float x = 0.0f;
    KVASIR_UNROLL
    for (uint32_t p = 0; p < kPairs; ++p) x += o[p][j][at] + o[p][j][at + 1];
    return Limbs<kType>::kIsF16 ? x * (1.0f / kWeightScale) : x;
  }
};

// 32 keys of the warp, one per lane. A lane whose key is not seen has the rows of one that is: they
// are read, and count for nothing.
struct TileRows {
  KeySlot key;
  uint32_t seen;
  bool is_aligned;

  KVASIR_DEVICE void find(const AttentionCall& call, const DecodeUnit& unit, uint32_t q_pos,
                          uint64_t slot) {
    key = key_of_slot(call, unit.part, unit.range, slot);
    seen = ballot(kAllLanes, sees(unit.part, q_pos, key));
    if (seen == 0) return;
    const uint32_t lane = thread_x() % kWarpLanes;
    const uint32_t first = count_bits((seen & (0u - seen)) - 1u);
    const uint64_t k = shuffle(kAllLanes, key.k, first), v = shuffle(kAllLanes, key.v, first);
    if ((seen >> lane & 1u) == 0) {
      key.k = k;
      key.v = v;
    }
    is_aligned = ballot(kAllLanes, (key.k | key.v) % sizeof(Bytes16) != 0) == 0;
  }
};

template <KvType kType, uint32_t kDim, uint32_t kQuads>
struct TensorUnit {
  QuadQueries<kType, kDim> q[kQuads];
  QuadState<kType, kDim> state[kQuads];

  KVASIR_DEVICE void load(const AttentionShape& shape, const DecodeUnit& unit) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kQuads; ++i) {
      q[i].load(shape, unit.part, unit.query, unit.range.kv_head, unit.first_head + kQuad * i);
      state[i].clear();
    }
  }

  // Keys first to first + 15 of the tile.
  KVASIR_DEVICE void attend(const AttentionCall& call, const DecodeUnit& unit, const TileRows& tile,
                            uint32_t first) {
    KeyPart<kType, kDim> k;
    ValuePart<kType, kDim> v;
    k.load(tile.is_aligned, tile.key.k, first);
    v.load(tile.is_aligned, tile.key.v, first);
    uint32_t b[kQuads][Limbs<kType>::kPairs][2];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kQuads; ++i) {
      float x[2];
      k.multiply_queries(q[i], x);
      find_logits(call, unit, tile, first, unit.first_head + kQuad * i, x);
      state[i].weigh(x, b[i]);
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kQuads; ++i) state[i].add_values(v, b[i]);
  }

 private:
  KVASIR_DEVICE static void find_logits(const AttentionCall& call, const DecodeUnit& unit,
                                        const TileRows& tile, uint32_t first, uint32_t first_head,
                                        float (&x)[2]) {
    const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, head = first_head + lane % 4;
    const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t key = first + g + 8 * i;
      const uint64_t item =
          unit.part.log_weight ? shuffle(kAllLanes, tile.key.item, key) : tile.key.item;
      const bool is_there = (tile.seen >> key & 1u) != 0 && head < group;
      x[i] = is_there ? logit_of(call.shape, unit.part, item, head, x[i]) : minus_infinity();
    }
  }
};

// What the warps of a block have, merged in their order. Heads of a warp lie kStride apart, so that
// lanes of different heads meet in few banks.
template <uint32_t kDim, uint32_t kHeads>
struct WarpSums {
  static constexpr uint32_t kStride = kDim + 2;
  Shared<float> o, highs, totals;  // [warp][head], of o [kStride]

  KVASIR_DEVICE void take(SharedMemory& shared) {
    o = shared.take<float>(kWarps * kHeads * kStride);
    highs = shared.take<float>(kWarps * kHeads);
    totals = shared.take<float>(kWarps * kHeads);
  }
  static uint32_t bytes() {
    SharedSize shared;
    shared.add<float>(kWarps * kHeads * kStride);
    shared.add<float>(kWarps * kHeads);
    shared.add<float>(kWarps * kHeads);
    return shared.bytes;
  }

  template <KvType kType>
  KVASIR_DEVICE void put(uint32_t quad, const QuadState<kType, kDim>& state) const {
    const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
    const uint32_t g = lane / 4, at = warp * kHeads + kQuad * quad + lane % 4;
    float sum = state.sum;
    for (uint32_t lanes = 4; lanes < kWarpLanes; lanes *= 2)
      sum += shuffle_xor(kAllLanes, sum, lanes);
    if (g == 0) {
      highs[at] = state.high;
      totals[at] = sum;
    }
    KVASIR_UNROLL
    for (uint32_t e = 0; e < kDim / 8; ++e)
      o[at * kStride + e / kChunk * 64 + g * kChunk + e % kChunk] = state.element(e);
  }

  // Behind a block_sync().
  KVASIR_DEVICE void store(const AttentionCall& call, const DecodeUnit& unit) const {
    const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
    for (uint32_t i = thread_x(); i < kHeads * kDim; i += kThreads) {
      const uint32_t h = i / kDim, d = i % kDim;
      if (unit.first_head + h >= group) break;
      float high = minus_infinity(), total = 0.0f, sum = 0.0f;
      for (uint32_t w = 0; w < kWarps; ++w) high = fmaxf(high, highs[w * kHeads + h]);
      for (uint32_t w = 0; w < kWarps; ++w) {
        const uint32_t at = w * kHeads + h;
        if (totals[at] == 0.0f) continue;
        const float keep = expf(highs[at] - high);
        total += keep * totals[at];
        sum += keep * o[at * kStride + d];
      }
      store_partial(call, unit.unit * group + unit.first_head + h, d, high, total, sum);
    }
  }
};

template <KvType kType, uint32_t kDim, uint32_t kQuads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) attend_unit_in_products(const AttentionCall call) {
  DecodeUnit unit;
  unit.load(call, kQuads * kQuad);
  const auto q_pos = load_at<uint32_t>(unit.part.q_pos + uint64_t{4} * unit.query);
  // Where keys lie takes three loads, one behind the other: all are asked for before any is used.
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  TileRows tiles[kWarpTiles];
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kWarpTiles; ++i)
    tiles[i].find(call, unit, q_pos, unit.first_slot + (warp * kWarpTiles + i) * kTile + lane);
  TensorUnit<kType, kDim, kQuads> tensor;
  tensor.load(call.shape, unit);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kWarpTiles; ++i) {
    if (tiles[i].seen == 0) continue;
    KVASIR_UNROLL
    for (uint32_t part = 0; part < kTile; part += kPart) tensor.attend(call, unit, tiles[i], part);
  }
  SharedMemory shared;
  WarpSums<kDim, kQuads * kQuad> sums;
  sums.take(shared);
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kQuads; ++i) sums.put(i, tensor.state[i]);
  block_sync();
  sums.store(call, unit);
}

template <KvType kType, uint32_t kDim, uint32_t kQuads>
void launch_unit(const AttentionCall& call, Stream stream) {
  constexpr uint32_t kHeads = kQuads * kQuad;
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>(call.n_blocks);
  shape.blocks_y = (group + kHeads - 1) / kHeads;
  shape.threads = kThreads;
  shape.shared_bytes = WarpSums<kDim, kHeads>::bytes();
  launch(attend_unit_in_products<kType, kDim, kQuads>, shape, stream, call);
}

template <KvType kType, uint32_t kDim>
void launch_dim(const AttentionCall& call, Stream stream) {
  // Two quads of bf16 would take more registers than a thread has.
  if (kType == KvType::kBF16 || call.shape.n_q_heads / call.shape.n_kv_heads <= kQuad)
    return launch_unit<kType, kDim, 1>(call, stream);
  launch_unit<KvType::kF16, kDim, 2>(call, stream);
}

template <KvType kType>
void launch_type(const AttentionCall& call, Stream stream) {
  if (call.shape.head_dim == 64) return launch_dim<kType, 64>(call, stream);
  launch_dim<kType, 128>(call, stream);
}

}  // namespace

bool attends_in_products(const AttentionCall& call) {
  const uint32_t dim = call.shape.head_dim;
  return (call.type == KvType::kF16 || call.type == KvType::kBF16) && (dim == 64 || dim == 128) &&
         call.shape.v_dim == dim;
}

void attention_decode_tensor(const AttentionCall& call, Stream stream) {
  if (call.type == KvType::kF16) return launch_type<KvType::kF16>(call, stream);
  launch_type<KvType::kBF16>(call, stream);
}

}  // namespace kvasir::cuda
