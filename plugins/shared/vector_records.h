// What methods of BlockRepresentative whose records are vectors of head_dim elements share: the
// `dtype` option, sizes, and dot products with a query. For plugins that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/block_representative.h>

#include "kernels/representative.h"
#include "plugins/shared/key_values.h"
#include "plugins/shared/larger.h"
#include "plugins/shared/record_options.h"

namespace kvasir::sdk {

inline constexpr const char* kRecordTypeNames[] = {"f32", "f16", "q8_0"};
inline constexpr kernels::ElementType kRecordTypes[] = {
    kernels::ElementType::kF32, kernels::ElementType::kF16, kernels::ElementType::kQ8_0};
inline constexpr kvasir_option_schema kRecordTypeOption =
    enum_option({.key = "dtype", .help = "element type of the records"}, kRecordTypeNames, 1);

class VectorRecords {
 public:
  explicit VectorRecords(const Options& options, uint32_t n_vectors = 1)
      : type_(kRecordTypes[options.choice("dtype")]), n_vectors_(n_vectors) {}

  void validate(const kvasir_geometry& geometry) const {
    const size_t group = kernels::group_elements(type_);
    if (geometry.head_dim % group == 0) return;
    fail_invalid("dtype = \"q8_0\" stores groups of " + std::to_string(group) +
                 " elements, and head_dim = " + std::to_string(geometry.head_dim) +
                 " is no multiple of that: take f16");
  }
  void bind(const kvasir_geometry& geometry) { head_dim_ = geometry.head_dim; }

  uint64_t vector_bytes() const { return kernels::row_bytes(type_, head_dim_); }
  uint64_t record_bytes() const { return n_vectors_ * vector_bytes(); }
  uint64_t format() const { return record_format(n_vectors_, static_cast<uint32_t>(type_)); }
  uint64_t build_scratch_bytes() const { return 0; }
  uint64_t score_scratch_bytes(uint32_t group_size) const {
    return kernels::score_scratch_bytes(group_size, head_dim_);
  }

  kernels::KeyRows rows(const HeadKeys& keys) const {
    return {keys.k, keys.token_stride, keys.n_tokens, head_dim_, element_type(keys.dtype)};
  }
  // out = sum, or with take_max the largest, of the dot products with vectors [first, first + n) of
  // each record. In runs whose records stay in the cache while their vectors are scored one after
  // another. Scratch: combined_scratch_bytes().
  void score_combined(const ScoreTask& task, uint32_t first, uint32_t n, bool take_max,
                      void* scratch) const {
    ScoreTask run = task;
    for (uint32_t begin = 0; begin < task.n; begin += kRun) {
      run.n = std::min(kRun, task.n - begin);
      run.records = task.records + begin * task.record_stride;
      run.out = task.out + begin;
      run.next = run.n < task.n - begin ? run.records + run.n * task.record_stride : task.next;
      score_run(run, first, n, take_max, scratch);
    }
  }
  uint64_t combined_scratch_bytes(uint32_t group_size) const {
    return kernel_scratch_bytes(group_size) + uint64_t{group_size} * kRun * sizeof(float);
  }

  // n records as the kernels see them, beginning at their `vector`-th vector.
  kernels::Records records(const ScoreTask& task, uint32_t vector = 0) const {
    const uint64_t at = vector * vector_bytes();
    const std::byte* next = task.next ? task.next + at : nullptr;
    return {task.records + at, task.record_stride, task.n, head_dim_, type_, next};
  }
  static kernels::ScoreQueries queries(const ScoreTask& task) {
    return {task.q, task.group_size, task.summed};
  }

  uint32_t head_dim() const { return head_dim_; }
  uint32_t n_vectors() const { return n_vectors_; }
  kernels::ElementType type() const { return type_; }

 private:
  static constexpr uint32_t kRun = 32;

  uint64_t kernel_scratch_bytes(uint32_t group_size) const {
    return (kernels::score_scratch_bytes(group_size, head_dim_) + 63) / 64 * 64;
  }

  void score_run(const ScoreTask& task, uint32_t first, uint32_t n, bool take_max,
                 void* scratch) const {
    kernels::score_dot(queries(task), records(task, first), task.out, task.out_stride, scratch);
    auto* dots = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) +
                                          kernel_scratch_bytes(task.group_size));
    for (uint32_t vector = first + 1; vector < first + n; ++vector) {
      kernels::score_dot(queries(task), records(task, vector), dots, kRun, scratch);
      for (uint32_t g = 0; g < queries(task).n_scores(); ++g) {
        float* score = task.out + g * task.out_stride;
        for (uint32_t i = 0; i < task.n; ++i) {
          const float dot = dots[g * kRun + i];
          score[i] = take_max ? larger_or_nan(score[i], dot) : score[i] + dot;
        }
      }
    }
  }

  kernels::ElementType type_;
  uint32_t n_vectors_;
  uint32_t head_dim_ = 0;
};

}  // namespace kvasir::sdk
