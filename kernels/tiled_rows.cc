// See tiled_rows.h. Two cores of a Xeon (3.6 GHz), billions of multiply-adds per second: tiles
// alone can make 3,100; from the second cache 512 rows and 256 inputs of four panels 2,050, and
// 1,650 where the rows come from the third. Chunks of 128 and 512 inputs make 1,560 and 1,690;
// panels that are not halved 1,540.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/tiled_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tiled_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/bf16_pairs-inl.h"
#include "kernels/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
#if KVASIR_HAS_BF16_PAIRS
HWY_PUSH_ATTRIBUTES(KVASIR_BF16_ATTRIBUTES)
#endif
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

#if KVASIR_HAS_BF16_PAIRS

constexpr size_t kHalf = kAmxColumns;  // outputs of a half of a panel
constexpr size_t kLine = 64;

void tile_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t first,
               size_t count, const TiledRows& layout, uint16_t* out) {
  const F32 d;
  for (size_t row = begin; row < end; ++row, x += x_stride) {
    const size_t of_block = row / kAmxRows * kAmxRows, of_row = row % kAmxRows * kTileInputs;
    for (size_t i = 0; i < count; i += kTileInputs) {
      const size_t input = first + i, chunk = input / kTiledInputs, left = count - i;
      const VecF32 low =
          left >= 16 ? hn::LoadU(d, x + i) : hn::MaskedLoad(hn::FirstN(d, left), d, x + i);
      const VecF32 high = left >= 32  ? hn::LoadU(d, x + i + 16)
                          : left > 16 ? hn::MaskedLoad(hn::FirstN(d, left - 16), d, x + i + 16)
                                      : hn::Zero(d);
      uint16_t* tile = out + layout.offset(chunk, of_block) + input % kTiledInputs * kAmxRows;
      hn::StoreU(narrow(low, high), PairTag(), reinterpret_cast<uint32_t*>(tile + of_row));
    }
  }
}

void tile_panel(const void* panel, size_t inputs, uint16_t* out) {
  const auto* from = static_cast<const uint32_t*>(panel);
  auto* to = reinterpret_cast<uint32_t*>(out);
  for (size_t pair = 0; pair < inputs / 2; ++pair)
    for (size_t half = 0; half < 2; ++half)
      std::memcpy(to + (half * inputs / 2 + pair) * kHalf,
                  from + pair * kPanelOutputs + half * kHalf, kHalf * sizeof(uint32_t));
}

// Byte kByte of each lane, as the last bits of the significand of a number between 256 and 512: no
// conversion, and every product with a scale is exact before it is rounded.
constexpr float kBase = 256.0f;

template <int kByte>
HWY_INLINE VecF32 above_base(VecB four) {
  constexpr int kShift = 15 - 8 * kByte;
  const PairTag du;
  const auto lanes = hn::BitCast(du, four);
  const auto moved = kShift > 0 ? hn::ShiftLeft<(kShift > 0 ? kShift : 0)>(lanes)
                                : hn::ShiftRight<(kShift > 0 ? 0 : -kShift)>(lanes);
  return hn::BitCast(F32(), hn::Or(hn::And(moved, hn::Set(du, 0xFFu << 15)),
                                   hn::BitCast(du, hn::Set(F32(), kBase))));
}

// Where the numbers of a block stand.
struct Block {
  const uint8_t *head, *scales, *upper, *q;
};

// Inputs 4 kStep to 4 kStep + 3 of a block, for the 16 outputs from `first` on.
template <QuantizedType kType, size_t kStep>
HWY_INLINE void expand_step(const Block& block, size_t first, VecF32 scale, VecF32 shift,
                            uint32_t* out) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  const VecB four = load_weights<kLayout, kStep>(block.upper, block.q, first);
  const auto weight = [&]<int kByte>() HWY_ATTR {
    VecF32 q = above_base<kByte>(four);
    if constexpr (kLayout.has_min) q = hn::Sub(q, hn::Set(F32(), kBase));
    return hn::MulAdd(q, scale, shift);
  };
  uint32_t* at = out + 2 * kStep * kHalf;
  hn::Store(zip(weight.template operator()<0>(), weight.template operator()<1>()), PairTag(), at);
  hn::Store(zip(weight.template operator()<2>(), weight.template operator()<3>()), PairTag(),
            at + kHalf);
}

// 16 inputs of a block, its first or its second half, which have one scale.
template <QuantizedType kType, size_t kHalfOfBlock>
HWY_INLINE void expand_half(const Block& block, size_t first, uint32_t* out) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  constexpr size_t kScale = kLayout.scales_per_block() == 1 ? 0 : kHalfOfBlock;
  const VecF32 scale = load_scale<kLayout>(block.head, block.scales, kScale, first);
  VecF32 shift;
  if constexpr (kLayout.has_min)
    shift = hn::Neg(load_min<kLayout>(block.head, block.scales, first));
  else
    shift = hn::Mul(scale, hn::Set(F32(), -kBase - static_cast<float>(kLayout.offset)));
  expand_step<kType, 4 * kHalfOfBlock + 0>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalfOfBlock + 1>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalfOfBlock + 2>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalfOfBlock + 3>(block, first, scale, shift, out);
}

template <QuantizedType kType>
void tile_quantized(const uint8_t* at, size_t inputs, uint32_t* out) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  for (size_t input = 0; input < inputs;) {
    const uint8_t* head = at;
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, input += kQuantizedInputs) {
      const uint8_t* upper = at + kLayout.scale_bytes();
      const Block block = {head, at, upper, upper + kLayout.upper_bytes()};
      for (size_t first = 0; first < kPanelOutputs; first += kOutputs) {
        uint32_t* to = out + (first / kHalf * inputs + input) / 2 * kHalf + first % kHalf;
        expand_half<kType, 0>(block, first, to);
        expand_half<kType, 1>(block, first, to);
      }
      at += kLayout.block_bytes();
    }
  }
}

void tile_quantized_panel(QuantizedType type, const void* panel, size_t inputs, uint16_t* out) {
  const auto* bytes = static_cast<const uint8_t*>(panel);
  auto* pairs = reinterpret_cast<uint32_t*>(out);
  switch (type) {
#define KVASIR_TILE(name)   \
  case QuantizedType::name: \
    return tile_quantized<QuantizedType::name>(bytes, inputs, pairs);
    KVASIR_TILE(kQ4_0)
    KVASIR_TILE(kQ4_1)
    KVASIR_TILE(kQ5_0)
    KVASIR_TILE(kQ5_1)
    KVASIR_TILE(kQ8_0)
    KVASIR_TILE(kIQ4_NL)
    KVASIR_TILE(kQ4_K)
    KVASIR_TILE(kQ5_K)
    KVASIR_TILE(kQ6_K)
#undef KVASIR_TILE
  }
}

// A block of 32 rows and 32 outputs to where it belongs: n rows and cols outputs of it.
HWY_INLINE void store_block(const float* sums, size_t n, size_t cols, bool accumulate, float* y,
                            size_t stride) {
  const F32 d;
  for (size_t r = 0; r < n; ++r, sums += kHalf, y += stride) {
    for (size_t c = 0; c < cols; c += 16) {
      const auto some = hn::FirstN(d, cols - c);
      VecF32 v = hn::Load(d, sums + c);
      if (accumulate) v = hn::Add(v, hn::MaskedLoad(some, d, y + c));
      hn::BlendedStore(v, some, d, y + c);
    }
  }
}

// A few lines of what lies ahead at a time: all of them in `steps` times.
class LinesAhead {
 public:
  LinesAhead(std::span<const ReadSoon> ahead, size_t steps) : ahead_(ahead) {
    size_t lines = 0;
    for (const ReadSoon& piece : ahead) lines += (piece.bytes + kLine - 1) / kLine;
    per_step_ = (lines + steps - 1) / steps;
  }
  HWY_INLINE void ask() {
    for (size_t i = 0; i < per_step_ && !ahead_.empty();) {
      const ReadSoon& piece = ahead_.front();
      for (; i < per_step_ && at_ < piece.bytes; ++i, at_ += kLine)
        _mm_prefetch(static_cast<const char*>(piece.data) + at_, _MM_HINT_T1);
      if (at_ < piece.bytes) return;
      ahead_ = ahead_.subspan(1);
      at_ = 0;
    }
  }

 private:
  std::span<const ReadSoon> ahead_;
  size_t at_ = 0, per_step_ = 0;
};

void multiply_tiled_rows(const uint16_t* x, size_t n, size_t inputs, const uint16_t* w, bool add,
                         float* sums, const TiledOutput* out, std::span<const ReadSoon> ahead) {
  const ConfiguredTiles configured(true);
  const auto* rows = reinterpret_cast<const uint32_t*>(x);
  const auto* pairs = reinterpret_cast<const uint32_t*>(w);
  const size_t n_blocks = (n + kTiledRows - 1) / kTiledRows;
  LinesAhead lines(ahead, 2 * n_blocks * (inputs / kTileInputs));
  for (size_t half = 0; half < 2; ++half) {
    const size_t first = half * kHalf;
    const bool store = out && first < out->cols;
    for (size_t b = 0; b < n_blocks; ++b, sums += kTiledRows * kHalf) {
      const size_t row = b * kTiledRows, n_rows = std::min(kTiledRows, n - row);
      float* const y = store ? out->y + row * out->stride + first : nullptr;
      const auto multiply = [&]<bool kBelow>() HWY_ATTR {
        const uint32_t* a = rows + row * inputs / 2;
        tile_product<kBelow>(a, a + kAmxRows * inputs / 2, kAmxPairs * sizeof(uint32_t),
                             kAmxRows * kAmxPairs, pairs + half * inputs / 2 * kHalf, inputs / 2,
                             add, sums, [&]() HWY_ATTR { lines.ask(); });
      };
      if (n_rows > kAmxRows)
        multiply.template operator()<true>();
      else
        multiply.template operator()<false>();
      if (store)
        store_block(sums, n_rows, std::min(kHalf, out->cols - first), out->accumulate, y,
                    out->stride);
    }
  }
}

#else

void tile_rows(const float*, size_t, size_t, size_t, size_t, size_t, const TiledRows&, uint16_t*) {}
void tile_panel(const void*, size_t, uint16_t*) {}
void tile_quantized_panel(QuantizedType, const void*, size_t, uint16_t*) {}
void multiply_tiled_rows(const uint16_t*, size_t, size_t, const uint16_t*, bool, float*,
                         const TiledOutput*, std::span<const ReadSoon>) {}

#endif  // KVASIR_HAS_BF16_PAIRS

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
#if KVASIR_HAS_BF16_PAIRS
HWY_POP_ATTRIBUTES
#endif
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(has_bf16_pairs);
HWY_EXPORT(tile_rows);
HWY_EXPORT(tile_panel);
HWY_EXPORT(tile_quantized_panel);
HWY_EXPORT(multiply_tiled_rows);

bool has_tiled_rows() { return HWY_DYNAMIC_DISPATCH(has_bf16_pairs)(); }

void tile_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t first,
               size_t count, const TiledRows& layout, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(tile_rows)(x, x_stride, begin, end, first, count, layout, out);
}

void tile_panel(const void* panel, size_t inputs, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(tile_panel)(panel, inputs, out);
}

void tile_quantized_panel(QuantizedType type, const void* panel, size_t inputs, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(tile_quantized_panel)(type, panel, inputs, out);
}

void multiply_tiled_rows(const uint16_t* x, size_t n, size_t inputs, const uint16_t* w, bool add,
                         float* sums, const TiledOutput* out, std::span<const ReadSoon> ahead) {
  HWY_DYNAMIC_DISPATCH(multiply_tiled_rows)
  (x, n, inputs, w, add, sums, out, ahead);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
