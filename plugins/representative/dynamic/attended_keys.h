// The record of the dynamic representative: per query head of a group, the n keys of a block that
// have the largest attention mass, apart or as their sum or mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "kernels/topk.h"
#include "plugins/shared/vector_records.h"

namespace kvasir::dynamic {

constexpr const char* kCountAliases[] = {"anchor_num", "repr_topk", nullptr};
constexpr const char* kCombineNames[] = {"sum", "max", "mean"};
enum Combine : uint32_t { kSum, kMax, kMean };
constexpr const char* kMassNames[] = {"last_queries", "window"};
constexpr const char* kCompatNames[] = {"none", "ktransformers"};

constexpr std::array kOptions = {
    sdk::kRecordTypeOption,
    sdk::int_option({.key = "representative_num",
                     .help = "most attended keys kept per block and query head",
                     .unit = "tokens",
                     .aliases = kCountAliases},
                    1, 1, 4096),
    sdk::enum_option({.key = "combine", .help = "how the dot products become one score"},
                     kCombineNames, kSum),
    sdk::enum_option({.key = "mass",
                      .help = "whose attention counts: the prompt's last queries, or every query "
                              "while the token is in the window"},
                     kMassNames, 0),
    sdk::int_option(
        {.key = "last_queries", .help = "queries at the prompt's end that count", .unit = "tokens"},
        128, 1, INT32_MAX),
    sdk::enum_option({.key = "compat",
                      .help = "ktransformers: where keys are summed, products below zero count as "
                              "zero, channel by channel"},
                     kCompatNames, 0),
};

class AttendedKeys : public sdk::VectorRecords {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.dynamic",
                     .version = "0.1.0",
                     .name = "Dynamic",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Summarises a block by its most attended keys, per query head.",
                     .options = kOptions,
                     .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
                     .needs = KVASIR_NEED_MASS,
                     .provides = KVASIR_PROVIDE_SCORES,
                     .dtypes = sdk::kElementTypes});

  explicit AttendedKeys(const sdk::Options& options)
      : VectorRecords(options, vectors_of(options)),
        n_keys_(options.u32("representative_num")),
        combine_(static_cast<Combine>(options.choice("combine"))),
        drops_negative_(drops_negative(options)) {
    if (options.choice("compat") == 1 && combine_ != kSum)
      sdk::fail_invalid("compat = \"ktransformers\" sums keys: drop combine, or say \"sum\"");
  }

  void validate(const kvasir_geometry& geometry) const {
    VectorRecords::validate(geometry);
    if (n_keys_ > geometry.block_size) {
      sdk::fail_invalid("representative_num = " + std::to_string(n_keys_) +
                        " is more than a block has tokens (block_size = " +
                        std::to_string(geometry.block_size) + ")");
    }
  }

  void bind(const kvasir_geometry& geometry) {
    VectorRecords::bind(geometry);
    group_size_ = geometry.n_q_heads / geometry.n_kv_heads;
    block_size_ = geometry.block_size;
  }

  uint64_t record_bytes() const { return group_size_ * VectorRecords::record_bytes(); }
  uint64_t format() const {
    return VectorRecords::format() | uint64_t{n_keys_} << 24 | uint64_t{combine_} << 40 |
           uint64_t{drops_negative_} << 42;
  }
  uint64_t build_scratch_bytes() const {  // of what work() lays out
    return block_size_ * sizeof(uint64_t) + 2 * uint64_t{head_dim()} * sizeof(float) +
           n_keys_ * sizeof(uint32_t);
  }
  uint64_t score_scratch_bytes(uint32_t) const {
    return sums() ? kernels::score_scratch_bytes(1, group_size_ * head_dim())
                  : combined_scratch_bytes(1);
  }

  // Nobody said which keys are attended: the block's mean in their place.
  void build(const sdk::HeadKeys& keys, std::byte* record, void* scratch) const {
    const Work w = work(scratch);
    kernels::update_sum(rows(keys), true, w.sum);
    const float scale =
        (combine_ == kSum ? static_cast<float>(n_keys_) : 1.0f) / static_cast<float>(keys.n_tokens);
    scale_sum(w.sum, scale);
    for (uint32_t g = 0; g < group_size_; ++g) {
      for (uint32_t i = 0; i < n_keys_ && combine_ == kMax; ++i) {
        store(w.sum, record, g * n_keys_ + i);
      }
      if (combine_ != kMax) store_sum(w.sum, w.key, record, g);
    }
  }

  // mass: [group_size][keys.n_tokens]. Equal mass: the lower position.
  void build(const sdk::HeadKeys& keys, const float* mass, std::byte* record, void* scratch) const {
    const Work w = work(scratch);
    for (uint32_t g = 0; g < group_size_; ++g) {
      const size_t n = kernels::top_k(mass + uint64_t{g} * keys.n_tokens, keys.n_tokens, n_keys_,
                                      w.index, w.order);
      std::fill_n(w.sum, head_dim(), 0.0f);
      for (uint32_t i = 0; i < n; ++i) {
        sdk::read_keys(keys, w.index[i], 1, head_dim(), w.key);
        if (combine_ == kMax) {
          store(w.key, record, g * n_keys_ + i);
        } else {
          for (uint32_t d = 0; d < head_dim(); ++d) w.sum[d] += w.key[d];
        }
      }
      if (combine_ == kMax) continue;
      if (combine_ == kMean) scale_sum(w.sum, 1.0f / static_cast<float>(n));
      store_sum(w.sum, w.key, record, g);
    }
  }

  // One vector per query head: they lie side by side as the queries do, so the sum over heads is
  // one dot product.
  bool sums() const { return n_vectors() == 1; }

  // Every query head has vectors of its own.
  void score(const sdk::ScoreTask& task, void* scratch) const {
    if (task.summed) {
      kernels::Records all = records(task);
      all.head_dim *= task.group_size;
      return kernels::score_dot({task.q, 1}, all, task.out, task.out_stride, scratch);
    }
    sdk::ScoreTask one = task;
    one.group_size = 1;
    for (uint32_t g = 0; g < task.group_size; ++g) {
      one.q = task.q + uint64_t{g} * head_dim();
      one.out = task.out + g * task.out_stride;
      if (drops_negative_) {
        kernels::score_min_max(queries(one), 1.0f, records(one, g * n_vectors()), one.out,
                               one.out_stride, scratch);
        continue;
      }
      score_combined(one, g * n_vectors(), n_vectors(), combine_ == kMax, scratch);
    }
  }

 private:
  // With one key there the product of all channels counts, as here.
  static bool drops_negative(const sdk::Options& options) {
    return options.choice("compat") == 1 && options.u32("representative_num") > 1;
  }
  static uint32_t vectors_of(const sdk::Options& options) {
    if (drops_negative(options)) return 2;
    return options.choice("combine") == kMax ? options.u32("representative_num") : 1;
  }

  struct Work {  // one thread's, inside scratch
    uint64_t* order;
    uint32_t* index;
    float *key, *sum;
  };
  Work work(void* scratch) const {
    auto* order = static_cast<uint64_t*>(scratch);
    auto* sum = reinterpret_cast<float*>(order + block_size_);
    auto* key = sum + head_dim();
    auto* index = reinterpret_cast<uint32_t*>(key + head_dim());
    return {order, index, key, sum};
  }
  void scale_sum(float* sum, float scale) const {
    for (uint32_t d = 0; d < head_dim(); ++d) sum[d] *= scale;
  }
  void store(const float* vector, std::byte* record, uint32_t at) const {
    kernels::convert_from_f32(type(), vector, record + at * vector_bytes(), head_dim());
  }

  // A sum of keys as what is below zero in it and what is above: the score of such a record as one
  // of minmax is the sum over the channels of the product, where it is positive.
  void store_sum(const float* sum, float* part, std::byte* record, uint32_t g) const {
    if (!drops_negative_) return store(sum, record, g);
    for (uint32_t d = 0; d < head_dim(); ++d) part[d] = std::min(sum[d], 0.0f);
    store(part, record, 2 * g);
    for (uint32_t d = 0; d < head_dim(); ++d) part[d] = std::max(sum[d], 0.0f);
    store(part, record, 2 * g + 1);
  }

  uint32_t n_keys_;
  Combine combine_;
  bool drops_negative_;
  uint32_t group_size_ = 1;
  uint32_t block_size_ = 0;
};

}  // namespace kvasir::dynamic
