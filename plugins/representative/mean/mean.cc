// A block is the mean of its keys; score = q . mean.
// The "Mean" representative of KTransformers' long-context mode, over valid tokens only.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/sdk/vector_records.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kRecordTypeOption};

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
                     .dtypes = sdk::kKeyTypes});

  explicit Mean(const sdk::Options& options) : VectorRecords(options) {}

  void build(const sdk::BlockRows& keys, std::byte* record) const {
    for (uint32_t d = 0; d < head_dim(); ++d) {
      double sum = 0.0;
      for (uint32_t t = 0; t < keys.n_tokens; ++t) sum += sdk::key_element(keys, t, d);
      put(record, 0, d, static_cast<float>(sum / keys.n_tokens));
    }
  }

  void score(const sdk::ScoreTask& task) const {
    for_each_score(task, [&](const float* q, const std::byte* r) { return dot(q, r, 0); });
  }
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE), "kvasir.mean\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<sdk::BlockRepresentative<Mean>>(host, request, err);
}
