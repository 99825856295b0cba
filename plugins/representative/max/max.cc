// A block is the elementwise maximum of its keys; score = q . max.
// The "Max" representative of KTransformers' long-context mode, without its clamp at zero.
// SPDX-License-Identifier: Apache-2.0
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

  uint64_t build_scratch_bytes() const { return 2 * head_dim() * sizeof(float); }

  // The upper half of a minmax record.
  void build(const sdk::BlockRows& keys, std::byte* record, void* scratch) const {
    auto* min_max = static_cast<float*>(scratch);
    kernels::update_min_max(rows(keys), true, kernels::ElementType::kF32, min_max);
    kernels::convert_from_f32(type(), min_max + head_dim(), record, head_dim());
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_dot(task.q, task.group_size, records(task), task.out, task.out_stride, scratch);
  }
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE), "kvasir.max\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<sdk::BlockRepresentative<Max>>(host, request, err);
}
