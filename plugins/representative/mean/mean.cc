// A block is the mean of its keys; score = q . mean.
// The "Mean" representative of KTransformers' long-context mode, over valid tokens only.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/coarse_first.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kRecordTypeOption,
                                 sdk::fixed_number_option("always 1: the mean", 1),
                                 sdk::kCoarseFirstOption};

class Mean : public sdk::VectorRecords {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.mean",
                     .version = "0.1.0",
                     .name = "Mean",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Summarises a block by the mean of its keys.",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_SCORES,
                     .dtypes = sdk::kElementTypes});

  explicit Mean(const sdk::Options& options) : VectorRecords(options) {}

  uint64_t build_scratch_bytes() const { return head_dim() * sizeof(float); }

  void build(const sdk::HeadKeys& keys, std::byte* record, void* scratch) const {
    auto* sum = static_cast<float*>(scratch);
    kernels::update_sum(rows(keys), true, sum);
    kernels::store_mean(sum, head_dim(), keys.n_tokens, type(), record);
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_dot(queries(task), records(task), task.out, task.out_stride, scratch);
  }
  bool sums() const { return true; }
  void weights(const kernels::ScoreQueries& queries, float* out) const {
    kernels::dot_weights(queries, head_dim(), out, 0);
  }
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.mean", "0.1.0", sdk::CoarseFirst<Mean>)
