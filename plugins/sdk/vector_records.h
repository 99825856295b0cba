// What methods of BlockRepresentative whose records are vectors of head_dim elements share: the
// `dtype` option, sizes, and the score as a sum or maximum of dot products.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include "plugins/sdk/block_representative.h"
#include "plugins/sdk/records.h"

namespace kvasir::sdk {

inline constexpr const char* kRecordTypeNames[] = {"f32", "f16"};
inline constexpr uint32_t kRecordTypes[] = {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16};
inline constexpr kvasir_option_schema kRecordTypeOption =
    enum_option({.key = "dtype", .help = "element type of the records"}, kRecordTypeNames, 1);

// Representatives read keys of these types.
inline constexpr uint64_t kKeyTypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) |
                                      KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
                                      KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16);

class VectorRecords {
 public:
  explicit VectorRecords(const Options& options, uint32_t n_vectors = 1)
      : dtype_(kRecordTypes[options.choice("dtype")]), n_vectors_(n_vectors) {}

  void bind(const kvasir_geometry& geometry) { head_dim_ = geometry.head_dim; }

  uint64_t vector_bytes() const {
    return uint64_t{head_dim_} * (dtype_ == KVASIR_DTYPE_F32 ? 4 : 2);
  }
  uint64_t record_bytes() const { return n_vectors_ * vector_bytes(); }
  uint64_t format() const { return uint64_t{1} << 48 | uint64_t{n_vectors_} << 8 | dtype_; }

  void put(std::byte* record, uint32_t vector, uint32_t d, float x,
           Round round = Round::kNearest) const {
    store_element(record + vector * vector_bytes(), dtype_, d, x, round);
  }
  float get(const std::byte* record, uint32_t vector, uint32_t d) const {
    return load_element(record + vector * vector_bytes(), dtype_, d);
  }

  // q . vector
  float dot(const float* q, const std::byte* record, uint32_t vector) const {
    float sum = 0.0f;
    for (uint32_t d = 0; d < head_dim_; ++d) sum += q[d] * get(record, vector, d);
    return sum;
  }

  // fn(q of one query head, one record) for all of them.
  template <class Fn>
  static void for_each_score(const ScoreTask& task, Fn&& fn) {
    for (uint32_t i = 0; i < task.n; ++i) {
      for (uint32_t g = 0; g < task.group_size; ++g) {
        task.out[g * task.out_stride + i] =
            fn(task.q + g * task.q_stride, task.records + i * task.record_stride);
      }
    }
  }

  uint32_t head_dim() const { return head_dim_; }
  uint32_t n_vectors() const { return n_vectors_; }

 private:
  uint32_t dtype_;
  uint32_t n_vectors_;
  uint32_t head_dim_ = 0;
};

inline float key_element(const BlockRows& keys, uint32_t token, uint32_t d) {
  return load_element(keys.k + token * keys.token_stride, keys.dtype, d);
}

}  // namespace kvasir::sdk
