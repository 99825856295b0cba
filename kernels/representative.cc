// Block summaries: one pass over the new rows; scores as dot products of records with a group.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/representative.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/convert.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/representative.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/narrow-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_REPRESENTATIVE_ONCE
#define KVASIR_KERNELS_REPRESENTATIVE_ONCE
namespace kvasir::kernels {

inline size_t padded_width(size_t n) { return (n + 15) / 16 * 16; }
constexpr size_t kPaddedRecords = 16;  // at a time

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_REPRESENTATIVE_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

template <class T>
HWY_INLINE const T* key_row(const KeyRows& rows, size_t t) {
  return reinterpret_cast<const T*>(static_cast<const uint8_t*>(rows.k) + t * rows.token_stride);
}

// Elements [column, column + n) of a row.
template <class T>
HWY_INLINE VecF32 load_some(const T* row, size_t column, size_t n) {
  const F32 d;
  return n == kLanes ? load_at(d, row, column) : load_tail_at(d, row, column, n);
}

template <class T>
HWY_INLINE void store_some(VecF32 x, T* to, size_t n) {
  n == kLanes ? store_row(x, to) : store_row_tail(x, to, n);
}

// ------------------------------------------------------------------ minimum and maximum

template <class T, class R>
void min_max(const KeyRows& rows, bool first, R* record) {
  const F32 d;
  for (size_t c = 0; c < rows.head_dim; c += kLanes) {
    const size_t n = std::min(kLanes, rows.head_dim - c);
    R* low_at = record + c;
    R* high_at = record + rows.head_dim + c;
    VecF32 low = first ? hn::Set(d, std::numeric_limits<float>::infinity())
                       : load_some(static_cast<const R*>(record), c, n);
    VecF32 high = first ? hn::Set(d, -std::numeric_limits<float>::infinity())
                        : load_some(static_cast<const R*>(record), rows.head_dim + c, n);
    for (size_t t = 0; t < rows.n; ++t) {
      const VecF32 k = load_some(key_row<T>(rows, t), c, n);
      low = hn::Min(low, k);
      high = hn::Max(high, k);
    }
    store_some(outwards(low, -1.0f, static_cast<R*>(nullptr)), low_at, n);
    store_some(outwards(high, 1.0f, static_cast<R*>(nullptr)), high_at, n);
  }
}

// The least binary16 scale of which 127 steps reach `largest`; NaN where that is not finite, the
// largest finite scale where none reaches it.
HWY_INLINE float store_scale_above(float largest, uint16_t* out) {
  const F32 d;
  constexpr float kLargest = 65504.0f;
  HWY_ALIGN hwy::float16_t half[kLanes];
  const bool saturates = largest > 127.0f * kLargest && std::isfinite(largest);
  store_row(hn::Set(d, saturates ? kLargest : largest / 127.0f), half);
  hwy::CopyBytes<2>(half, out);
  float scale = hn::GetLane(load_row(d, half));
  if (127.0f * scale < largest && !saturates) {  // the product is exact
    ++*out;                                      // the next binary16 above
    hwy::CopyBytes<2>(out, half);
    scale = hn::GetLane(load_row(d, half));
  }
  return scale;
}

// A group whose elements lie at or beyond those of x, away from the middle of the box: below them
// with sign = -1, above with +1.   x [kGroupElements]
HWY_INLINE void store_outwards(const float* HWY_RESTRICT x, float sign, Q8Group* HWY_RESTRICT out) {
  float largest = 0.0f, poison = 0.0f;
  for (size_t i = 0; i < kGroupElements; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    poison += 0.0f * x[i];
  }
  const float scale = store_scale_above(largest + poison, &out->scale);
  for (size_t i = 0; i < kGroupElements; ++i) {
    float step = scale > 0.0f ? std::floor(sign * x[i] / scale) : 0.0f;
    if (step * scale < sign * x[i]) step += 1.0f;  // the product is exact
    out->q[i] = static_cast<int8_t>(sign * std::min(127.0f, std::max(-127.0f, step)));
  }
}

// Groups are rounded once, so the rows are those of the whole block.
template <class T>
void min_max(const KeyRows& rows, bool, Q8Group* record) {
  const F32 d;
  HWY_ALIGN float low[kGroupElements], high[kGroupElements];
  for (size_t group = 0; group < rows.head_dim / kGroupElements; ++group) {
    for (size_t i = 0; i < kGroupElements; i += kLanes) {
      const size_t c = group * kGroupElements + i;
      VecF32 least = load_some(key_row<T>(rows, 0), c, kLanes), most = least;
      for (size_t t = 1; t < rows.n; ++t) {
        const VecF32 k = load_some(key_row<T>(rows, t), c, kLanes);
        least = hn::Min(least, k);
        most = hn::Max(most, k);
      }
      hn::Store(least, d, low + i);
      hn::Store(most, d, high + i);
    }
    store_outwards(low, -1.0f, record + group);
    store_outwards(high, 1.0f, record + rows.head_dim / kGroupElements + group);
  }
}

template <class R>
void min_max_of(const KeyRows& rows, bool first, R* record) {
  with_row_type(rows.type, [&]<class T>(T) { min_max<T>(rows, first, record); });
}

void extend_min_max(const KeyRows& rows, bool first, ElementType record_type, void* record) {
  if (rows.n == 0) return;
  if (record_type == ElementType::kF32) min_max_of(rows, first, static_cast<float*>(record));
  if (record_type == ElementType::kF16) {
    min_max_of(rows, first, static_cast<hwy::float16_t*>(record));
  }
  if (record_type == ElementType::kQ8_0) min_max_of(rows, first, static_cast<Q8Group*>(record));
}

// ------------------------------------------------------------------ sum

template <class T>
void add_rows(const KeyRows& rows, bool first, float* sum) {
  const F32 d;
  for (size_t c = 0; c < rows.head_dim; c += kLanes) {
    const size_t n = std::min(kLanes, rows.head_dim - c);
    VecF32 total = first ? hn::Zero(d) : load_some(static_cast<const float*>(sum), c, n);
    for (size_t t = 0; t < rows.n; ++t) {
      total = hn::Add(total, load_some(key_row<T>(rows, t), c, n));
    }
    store_some(total, sum + c, n);
  }
}

void extend_sum(const KeyRows& rows, bool first, float* sum) {
  with_row_type(rows.type, [&]<class T>(T) { add_rows<T>(rows, first, sum); });
}

template <class R>
void store_scaled(const float* sum, size_t n, float factor, R* record) {
  const F32 d;
  for (size_t c = 0; c < n; c += kLanes) {
    const size_t used = std::min(kLanes, n - c);
    store_some(hn::Mul(load_some(sum, c, used), hn::Set(d, factor)), record + c, used);
  }
}

void mean(const float* sum, size_t head_dim, float factor, ElementType type, void* record) {
  if (type == ElementType::kF32) store_scaled(sum, head_dim, factor, static_cast<float*>(record));
  if (type == ElementType::kF16) {
    store_scaled(sum, head_dim, factor, static_cast<hwy::float16_t*>(record));
  }
  if (type == ElementType::kBF16) {
    store_scaled(sum, head_dim, factor, static_cast<hwy::bfloat16_t*>(record));
  }
}

// ------------------------------------------------------------------ scores

// packed[g * stride + d] = q[g][d] * (q[g][d] < 0 ? below : above), or for summed queries the sum
// over g.
void pack_queries(const ScoreQueries& queries, size_t head_dim, float below, float above,
                  float* packed, size_t stride) {
  const F32 d;
  for (size_t c = 0; c < head_dim; c += kLanes) {
    const size_t n = std::min(kLanes, head_dim - c);
    VecF32 sum = hn::Zero(d);
    for (size_t g = 0; g < queries.n; ++g) {
      const VecF32 q = load_some(queries.q + g * head_dim, c, n);
      const VecF32 factor =
          hn::IfThenElse(hn::Lt(q, hn::Zero(d)), hn::Set(d, below), hn::Set(d, above));
      const VecF32 x = hn::Mul(q, factor);
      sum = g == 0 ? x : hn::Add(sum, x);
      if (!queries.summed) store_some(x, packed + g * stride + c, n);
    }
    if (queries.summed) store_some(sum, packed + c, n);
  }
}

// q [n_heads, padded_width(width)] aligned, zero padded; records of `width` elements of T.
template <class T>
void score_records(const float* q, size_t n_heads, size_t width, const Records& records,
                   float* score, size_t score_stride) {
  const T* rows[kTileTokens + kMaxAheadRows];
  const size_t ahead = ahead_rows(bytes_of_row<T>(width));
  size_t left = records.n;
  for (size_t b = 0; b < records.n; b += kTileTokens) {
    const size_t n = std::min(kTileTokens, records.n - b);
    const size_t here = std::min(n + ahead, left);
    for (size_t i = 0; i < here; ++i) rows[i] = static_cast<const T*>(records.record(b + i));
    const auto* behind = static_cast<const uint8_t*>(records.next);
    for (size_t i = here; i < n + ahead; ++i)
      rows[i] = behind ? reinterpret_cast<const T*>(behind + (i - here) * records.record_bytes)
                       : rows[here - 1];
    left -= n;
    const LinkedRows next{reinterpret_cast<const void* const*>(rows + ahead),
                          bytes_of_row<T>(width)};
    dot_heads(q, padded_width(width), n_heads, rows, n, width, score + b, score_stride, next);
  }
}

// A record of `width` elements as f32, zeros behind it up to a whole vector. A record that others
// follow may be read on into: an element by element copy takes longer than all else.
template <class T>
HWY_INLINE void pad_record(const T* record, size_t width, bool may_read_on, float* padded) {
  const F32 d;
  size_t c = 0;
  for (; c + kLanes <= width; c += kLanes) hn::Store(load_at(d, record, c), d, padded + c);
  const size_t n = width - c;
  const VecF32 last = may_read_on ? hn::IfThenElseZero(hn::FirstN(d, n), load_at(d, record, c))
                                  : load_tail_at(d, record, c, n);
  hn::Store(last, d, padded + c);
}

// The same for records that end within a vector.   padded [kPaddedRecords, padded_width(width)]
template <class T>
void score_padded(const float* q, size_t n_heads, size_t width, const Records& records,
                  float* score, size_t score_stride, float* padded) {
  const size_t stride = padded_width(width), whole = (width + kLanes - 1) / kLanes * kLanes;
  const uint8_t* end =
      static_cast<const uint8_t*>(records.record(records.n - 1)) + bytes_of_row<T>(width);
  const float* rows[kPaddedRecords];
  for (size_t i = 0; i < kPaddedRecords; ++i) rows[i] = padded + i * stride;
  for (size_t b = 0; b < records.n; b += kPaddedRecords) {
    const size_t n = std::min(kPaddedRecords, records.n - b);
    for (size_t i = 0; i < n; ++i) {
      const auto* record = static_cast<const uint8_t*>(records.record(b + i));
      const bool may_read_on =
          !records.list && bytes_of_row<T>(whole) <= static_cast<size_t>(end - record);
      pad_record(reinterpret_cast<const T*>(record), width, may_read_on, padded + i * stride);
    }
    const LinkedRows nothing;
    dot_heads(q, stride, n_heads, rows, n, whole, score + b, score_stride, nothing);
  }
}

void score_all(const float* q, size_t n_heads, size_t width, const Records& records, float* score,
               size_t score_stride, float* padded) {
  if (records.n == 0) return;
  with_row_type(records.type, [&]<class T>(T) {
    if constexpr (!Grouped<T>) {
      if (width % kLanes != 0)
        return score_padded<T>(q, n_heads, width, records, score, score_stride, padded);
    }
    score_records<T>(q, n_heads, width, records, score, score_stride);
  });
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(extend_min_max);
HWY_EXPORT(extend_sum);
HWY_EXPORT(mean);
HWY_EXPORT(pack_queries);
HWY_EXPORT(score_all);

void update_min_max(const KeyRows& rows, bool first, ElementType record_type, void* record) {
  HWY_DYNAMIC_DISPATCH(extend_min_max)(rows, first, record_type, record);
}

void update_sum(const KeyRows& rows, bool first, float* sum) {
  HWY_DYNAMIC_DISPATCH(extend_sum)(rows, first, sum);
}

void store_mean(const float* sum, size_t head_dim, size_t n_tokens, ElementType record_type,
                void* record) {
  const float factor = n_tokens == 0 ? 0.0f : 1.0f / static_cast<float>(n_tokens);
  if (group_elements(record_type) > 1) {
    float mean[kGroupElements];
    for (size_t group = 0; group < head_dim / kGroupElements; ++group) {
      for (size_t i = 0; i < kGroupElements; ++i)
        mean[i] = sum[group * kGroupElements + i] * factor;
      convert_from_f32(
          record_type, mean,
          static_cast<uint8_t*>(record) + row_bytes(record_type, group * kGroupElements),
          kGroupElements);
    }
    return;
  }
  HWY_DYNAMIC_DISPATCH(mean)(sum, head_dim, factor, record_type, record);
}

size_t score_scratch_bytes(size_t n_queries, size_t head_dim) {
  return (n_queries + kPaddedRecords) * padded_width(2 * head_dim) * sizeof(float);
}

namespace {

// `packed` holds the queries, `width` wide; behind them is room for padded records.
void score_packed(float* packed, size_t n_queries, size_t width, const Records& records,
                  float* score, size_t score_stride) {
  const size_t stride = padded_width(width);
  for (size_t g = 0; g < n_queries; ++g)
    std::fill(packed + g * stride + width, packed + (g + 1) * stride, 0.0f);
  HWY_DYNAMIC_DISPATCH(score_all)
  (packed, n_queries, width, records, score, score_stride, packed + n_queries * stride);
}

}  // namespace

void dot_weights(const ScoreQueries& queries, size_t head_dim, float* weights,
                 size_t weight_stride) {
  HWY_DYNAMIC_DISPATCH(pack_queries)(queries, head_dim, 1.0f, 1.0f, weights, weight_stride);
}

void min_max_weights(const ScoreQueries& queries, size_t head_dim, float box_scale, float* weights,
                     size_t weight_stride) {
  const float near = 0.5f * (1.0f - box_scale), far = 0.5f * (1.0f + box_scale);
  HWY_DYNAMIC_DISPATCH(pack_queries)(queries, head_dim, far, near, weights, weight_stride);
  HWY_DYNAMIC_DISPATCH(pack_queries)
  (queries, head_dim, near, far, weights + head_dim, weight_stride);
}

void score_dot(const ScoreQueries& queries, const Records& records, float* score,
               size_t score_stride, void* scratch) {
  auto* packed = static_cast<float*>(scratch);
  dot_weights(queries, records.head_dim, packed, padded_width(records.head_dim));
  score_packed(packed, queries.n_scores(), records.head_dim, records, score, score_stride);
}

void score_min_max(const ScoreQueries& queries, float box_scale, const Records& records,
                   float* score, size_t score_stride, void* scratch) {
  auto* packed = static_cast<float*>(scratch);
  const size_t stride = padded_width(2 * records.head_dim);
  min_max_weights(queries, records.head_dim, box_scale, packed, stride);
  score_packed(packed, queries.n_scores(), 2 * records.head_dim, records, score, score_stride);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
