// A block is the elementwise minimum and maximum of its keys;
//   score = sum_d max(q[d] * k_min[d], q[d] * k_max[d]),
// an upper bound of q . k over the block. Tang et al. 2024 (Quest), arXiv:2406.10774.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "plugins/sdk/vector_records.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kRecordTypeOption};

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
                     .dtypes = sdk::kKeyTypes});

  explicit MinMax(const sdk::Options& options) : VectorRecords(options, 2) {}

  // Rounded outwards: the bound stays one in f16.
  void build(const sdk::BlockRows& keys, std::byte* record) const {
    for (uint32_t d = 0; d < head_dim(); ++d) {
      float low = sdk::key_element(keys, 0, d), high = low;
      for (uint32_t t = 1; t < keys.n_tokens; ++t) {
        const float x = sdk::key_element(keys, t, d);
        low = std::min(low, x);
        high = std::max(high, x);
      }
      put(record, kMin, d, low, sdk::Round::kDown);
      put(record, kMax, d, high, sdk::Round::kUp);
    }
  }

  void score(const sdk::ScoreTask& task) const {
    for_each_score(task, [&](const float* q, const std::byte* record) {
      float bound = 0.0f;
      for (uint32_t d = 0; d < head_dim(); ++d) {
        bound += std::max(q[d] * get(record, kMin, d), q[d] * get(record, kMax, d));
      }
      return bound;
    });
  }

 private:
  static constexpr uint32_t kMin = 0, kMax = 1;  // order of the vectors in a record
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE), "kvasir.minmax\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<sdk::BlockRepresentative<MinMax>>(host, request, err);
}
