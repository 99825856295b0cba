// A block is the elementwise minimum and maximum of its keys;
//   score = sum_d max(q[d] * k_min[d], q[d] * k_max[d]),
// an upper bound of q . k over the block. Tang et al. 2024 (Quest), arXiv:2406.10774. No key is at
// the corner of the box that the bound takes, the less so the more channels there are: box_scale
// shrinks the box about its centre.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/coarse_first.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::kRecordTypeOption, sdk::fixed_number_option("minimum and maximum; 1 means them too", 2),
    sdk::kBoxScaleOption, sdk::kCoarseFirstOption};

class MinMax : public sdk::VectorRecords {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.minmax",
                     .version = "0.1.0",
                     .name = "Min-max",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Bounds every key of a block from both sides (Quest).",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_SCORES,
                     .dtypes = sdk::kElementTypes});

  explicit MinMax(const sdk::Options& options)
      : VectorRecords(options, 2), box_scale_(static_cast<float>(options.f64("box_scale"))) {}

  // Rounded outwards: the bound stays one in f16.
  void build(const sdk::HeadKeys& keys, std::byte* record, void*) const {
    kernels::update_min_max(rows(keys), true, type(), record);
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_min_max(queries(task), box_scale_, records(task), task.out, task.out_stride,
                           scratch);
  }
  bool sums() const { return true; }
  void weights(const kernels::ScoreQueries& queries, float* out) const {
    kernels::min_max_weights(queries, head_dim(), box_scale_, out, 0);
  }

 private:
  float box_scale_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.minmax", "0.1.0", sdk::CoarseFirst<MinMax>)
