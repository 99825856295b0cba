// The last queries of the prompt decide which tokens before them stay.
// Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv:2404.14469.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/shared/prompt_votes.h"

namespace {
using namespace kvasir;

class SnapKv {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.snapkv",
                     .version = "0.1.0",
                     .name = "SnapKV",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the tokens that the last queries of the prompt attend to.",
                     .options = sdk::kVoteOptions,
                     .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
                     .needs = KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});

  explicit SnapKv(const sdk::Options&) {}
  void bind(const sdk::Host&, const kvasir_geometry&, uint32_t budget_tokens) {
    budget_tokens_ = budget_tokens;
  }
  uint64_t keep(uint32_t, uint64_t) const { return budget_tokens_; }
  uint64_t max_keep() const { return budget_tokens_; }

 private:
  uint32_t budget_tokens_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.snapkv", "0.1.0", sdk::PromptVotes<SnapKv>)
