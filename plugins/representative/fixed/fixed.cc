// A block is n of its keys, at tokens 0, B/n, 2B/n …; score = sum (or max) of their dot products.
// The "Fix" representative of KTransformers' long-context mode, keeping the n keys apart.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/vector_records.h"

namespace {
using namespace kvasir;

constexpr const char* kCombineNames[] = {"sum", "max"};
constexpr uint32_t kCombineMax = 1;

constexpr std::array kOptions = {
    sdk::kRecordTypeOption,
    sdk::int_option({.key = "representative_num",
                     .help = "keys kept per block, evenly spaced",
                     .unit = "tokens",
                     .aliases = sdk::kNumberAliases},
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
                     .dtypes = sdk::kElementTypes});

  explicit Fixed(const sdk::Options& options)
      : VectorRecords(options, options.u32("representative_num")),
        take_max_(options.choice("combine") == kCombineMax) {}

  void validate(const kvasir_geometry& geometry) const {
    VectorRecords::validate(geometry);
    if (n_vectors() > geometry.block_size) {
      sdk::fail_invalid("representative_num = " + std::to_string(n_vectors()) +
                        " is more than a block has tokens (block_size = " +
                        std::to_string(geometry.block_size) + ")");
    }
  }

  uint64_t build_scratch_bytes() const { return head_dim() * sizeof(float); }
  uint64_t score_scratch_bytes(uint32_t group_size) const {
    return combined_scratch_bytes(group_size);
  }

  // A block shorter than n tokens repeats some of them.
  void build(const sdk::HeadKeys& keys, std::byte* record, void* scratch) const {
    auto* key = static_cast<float*>(scratch);
    for (uint32_t i = 0; i < n_vectors(); ++i) {
      const auto token = static_cast<uint32_t>(uint64_t{i} * keys.n_tokens / n_vectors());
      sdk::read_keys(keys, token, 1, head_dim(), key);
      kernels::convert_from_f32(type(), key, record + i * vector_bytes(), head_dim());
    }
  }

  void score(const sdk::ScoreTask& task, void* scratch) const {
    score_combined(task, 0, n_vectors(), take_max_, scratch);
  }
  bool sums() const { return n_vectors() == 1 || !take_max_; }

 private:
  bool take_max_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.fixed", "0.1.0",
                  sdk::BlockRepresentative<Fixed>)
