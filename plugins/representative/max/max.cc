// A block is the elementwise maximum of its keys; score = q . max.
// The "Max" representative of KTransformers' long-context mode, on request with its clamp at zero.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "plugins/shared/vector_records.h"

namespace {
using namespace kvasir;

constexpr const char* kCompatNames[] = {"none", "ktransformers"};
constexpr std::array kOptions = {
    sdk::kRecordTypeOption, sdk::fixed_number_option("always 1: the maximum", 1),
    sdk::enum_option(
        {.key = "compat", .help = "ktransformers: a maximum below zero counts as zero"},
        kCompatNames, 0)};

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
                     .dtypes = sdk::kElementTypes});

  explicit Max(const sdk::Options& options)
      : VectorRecords(options), clamps_(options.choice("compat") == 1) {}

  uint64_t format() const { return VectorRecords::format() | uint64_t{clamps_} << 24; }

  uint64_t build_scratch_bytes() const { return uint64_t{2} * head_dim() * sizeof(float); }

  // The upper half of a minmax record.
  void build(const sdk::HeadKeys& keys, std::byte* record, void* scratch) const {
    auto* min_max = static_cast<float*>(scratch);
    kernels::update_min_max(rows(keys), true, kernels::ElementType::kF32, min_max);
    float* max = min_max + head_dim();
    for (uint32_t d = 0; clamps_ && d < head_dim(); ++d) max[d] = std::max(max[d], 0.0f);
    kernels::convert_from_f32(type(), max, record, head_dim());
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_dot(queries(task), records(task), task.out, task.out_stride, scratch);
  }
  bool sums() const { return true; }

 private:
  bool clamps_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.max", "0.1.0", sdk::BlockRepresentative<Max>)
