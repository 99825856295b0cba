// Attends to the blocks whose representatives score highest. With minmax this is Quest
// (arXiv:2406.10774); with mean, max, dynamic or fixed, and preselect before it, the long-context
// mode of KTransformers.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/block_choice.h"

namespace {
using namespace kvasir;

constexpr const char* kTokensAliases[] = {"token_budget", nullptr};
constexpr const char* kBlocksAliases[] = {"second_block_count", "second_select_num", "topk",
                                          "pick_block_num", nullptr};
constexpr const char* kCompatNames[] = {"none", "ktransformers"};
constexpr std::array kOptions = {
    sdk::budget_tokens_option(4096, kTokensAliases), sdk::budget_blocks_option(kBlocksAliases),
    sdk::enum_option(
        {.key = "compat", .help = "ktransformers: of equal scores the higher block goes first"},
        kCompatNames, 0)};

class BlockTopK : public sdk::BlockChoice {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.block_topk",
                     .version = "0.1.0",
                     .name = "Block top-k",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to the blocks whose representatives score highest.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_SCORES});
  BlockTopK(const sdk::Host& host, const sdk::Options& options)
      : BlockChoice(host, options, options.choice("compat") == 1) {}
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.block_topk", "0.1.0", BlockTopK)
