// A block is the elementwise minimum and maximum of its keys;
//   score = sum_d max(q[d] * k_min[d], q[d] * k_max[d]),
// an upper bound of q . k over the block. Tang et al. 2024 (Quest), arXiv:2406.10774.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/vector_records.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::kRecordTypeOption, sdk::fixed_number_option("minimum and maximum; 1 means them too", 2)};

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

  explicit MinMax(const sdk::Options& options) : VectorRecords(options, 2) {}

  // Rounded outwards: the bound stays one in f16.
  void build(const sdk::HeadKeys& keys, std::byte* record, void*) const {
    kernels::update_min_max(rows(keys), true, type(), record);
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_min_max(task.q, task.group_size, records(task), task.out, task.out_stride,
                           scratch);
  }
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.minmax", "0.1.0",
                  sdk::BlockRepresentative<MinMax>)
