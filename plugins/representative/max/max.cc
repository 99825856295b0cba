// A block is the elementwise maximum of its keys; score = q . max.
// The "Max" representative of KTransformers' long-context mode, without its clamp at zero.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "plugins/sdk/vector_records.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kRecordTypeOption};

class Max : public sdk::VectorRecords {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.max",
                     .version = "0.1.0",
                     .name = "Max",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Summarises a block by the elementwise maximum of its keys.",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_SCORES,
                     .dtypes = sdk::kKeyTypes});

  explicit Max(const sdk::Options& options) : VectorRecords(options) {}

  void build(const sdk::BlockRows& keys, std::byte* record) const {
    for (uint32_t d = 0; d < head_dim(); ++d) {
      float high = sdk::key_element(keys, 0, d);
      for (uint32_t t = 1; t < keys.n_tokens; ++t) {
        high = std::max(high, sdk::key_element(keys, t, d));
      }
      put(record, 0, d, high);
    }
  }

  void score(const sdk::ScoreTask& task) const {
    for_each_score(task, [&](const float* q, const std::byte* r) { return dot(q, r, 0); });
  }
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE), "kvasir.max\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<sdk::BlockRepresentative<Max>>(host, request, err);
}
