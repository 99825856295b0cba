// Attends to the blocks whose representatives score highest. With minmax this is Quest
// (arXiv:2406.10774); with mean, max, dynamic or fixed, and preselect before it, the long-context
// mode of KTransformers.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/shared/block_choice.h"
#include "plugins/shared/block_topk_options.h"

namespace {
using namespace kvasir;

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
                     .options = sdk::kBlockTopKOptions,
                     .needs = KVASIR_NEED_SCORES});
  BlockTopK(const sdk::Host& host, const sdk::Options& options)
      : BlockChoice(host, options, sdk::higher_block_wins(options)) {}
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.block_topk", "0.1.0", BlockTopK)
