// A block is n of its keys, at tokens 0, B/n, 2B/n …; score = sum (or max) of their dot products.
// The "Fix" representative of KTransformers' long-context mode, keeping the n keys apart.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "plugins/sdk/vector_records.h"

namespace {
using namespace kvasir;

constexpr const char* kCountAliases[] = {"anchor_num", nullptr};
constexpr const char* kCombineNames[] = {"sum", "max"};
constexpr uint32_t kCombineMax = 1;

constexpr std::array kOptions = {
    sdk::kRecordTypeOption,
    sdk::int_option({.key = "representative_num",
                     .help = "keys kept per block, evenly spaced",
                     .unit = "tokens",
                     .aliases = kCountAliases},
                    1, 1, 4096),
    sdk::enum_option({.key = "combine", .help = "how the dot products become one score"},
                     kCombineNames, 0),
};

class Fixed : public sdk::VectorRecords {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_REPRESENTATIVE,
                     .id = "kvasir.fixed",
                     .version = "0.1.0",
                     .name = "Fixed",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Summarises a block by every n-th of its keys.",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_SCORES,
                     .dtypes = sdk::kKeyTypes});

  explicit Fixed(const sdk::Options& options)
      : VectorRecords(options, options.u32("representative_num")),
        take_max_(options.choice("combine") == kCombineMax) {}

  void validate(const kvasir_geometry& geometry) const {
    if (n_vectors() > geometry.block_size) {
      sdk::fail_invalid("representative_num = " + std::to_string(n_vectors()) +
                        " is more than a block has tokens (block_size = " +
                        std::to_string(geometry.block_size) + ")");
    }
  }

  uint64_t build_scratch_bytes() const { return head_dim() * sizeof(float); }
  // One list of scores per query head beside what the kernel needs.
  uint64_t score_scratch_bytes(uint32_t group_size) const {
    return kernel_scratch_bytes(group_size) + group_size * kRun * sizeof(float);
  }

  // A block shorter than n tokens repeats some of them.
  void build(const sdk::BlockRows& keys, std::byte* record, void* scratch) const {
    auto* key = static_cast<float*>(scratch);
    for (uint32_t i = 0; i < n_vectors(); ++i) {
      const uint64_t token = uint64_t{i} * keys.n_tokens / n_vectors();
      kernels::convert_to_f32(sdk::key_type(keys), keys.k + token * keys.token_stride, key,
                              head_dim());
      kernels::convert_from_f32(type(), key, record + i * vector_bytes(), head_dim());
    }
  }

  // In runs whose records stay in the cache while their vectors are scored one after another.
  void score(const sdk::ScoreTask& task, void* scratch) const {
    sdk::ScoreTask run = task;
    for (uint32_t begin = 0; begin < task.n; begin += kRun) {
      run.n = std::min(kRun, task.n - begin);
      run.records = task.records + begin * task.record_stride;
      run.out = task.out + begin;
      score_run(run, scratch);
    }
  }

 private:
  static constexpr uint32_t kRun = 32;

  uint64_t kernel_scratch_bytes(uint32_t group_size) const {
    return (VectorRecords::score_scratch_bytes(group_size) + 63) / 64 * 64;
  }

  void score_run(const sdk::ScoreTask& task, void* scratch) const {
    kernels::score_dot(task.q, task.group_size, records(task, 0), task.out, task.out_stride,
                       scratch);
    auto* dots = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) +
                                          kernel_scratch_bytes(task.group_size));
    for (uint32_t vector = 1; vector < n_vectors(); ++vector) {
      kernels::score_dot(task.q, task.group_size, records(task, vector), dots, kRun, scratch);
      for (uint32_t g = 0; g < task.group_size; ++g) {
        combine(dots + g * kRun, task.out + g * task.out_stride, task.n);
      }
    }
  }

  void combine(const float* dots, float* score, uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) {
      score[i] = take_max_ ? std::max(score[i], dots[i]) : score[i] + dots[i];
    }
  }

  bool take_max_;
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE), "kvasir.fixed\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<sdk::BlockRepresentative<Fixed>>(host, request, err);
}
