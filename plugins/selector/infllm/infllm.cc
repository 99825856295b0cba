// InfLLM: keys before RoPE, the window at true positions, everything before it at one constant
// distance, and of the blocks there the best ones per slice of the prompt and per decoded token.
// Xiao et al. 2024, arXiv:2402.04617.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/block_choice.h"

namespace {
using namespace kvasir;

constexpr const char* kBlocksAliases[] = {"topk", nullptr};
constexpr std::array kOptions = {
    sdk::budget_tokens_option(2048),
    sdk::budget_blocks_option(kBlocksAliases),
    sdk::int_option(
        {.key = "exc_block_size", .help = "prompt tokens that share one choice", .unit = "tokens"},
        512, 1, INT32_MAX),
};

class InfLlm : public sdk::BlockChoice {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.infllm",
                     .version = "0.1.0",
                     .name = "InfLLM",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to the best blocks as if all of them lay at one distance.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_SCORES | KVASIR_NEED_UNROTATED_K | KVASIR_NEED_DISTANCE});

  InfLlm(const sdk::Host& host, const sdk::Options& options)
      : BlockChoice(host, options), slice_tokens_(options.u32("exc_block_size")) {}

  void validate(const kvasir_geometry& geometry) const {
    BlockChoice::validate(geometry);
    if (geometry.window_tokens == 0)
      sdk::fail_invalid("infllm needs window_tokens (n_local) above 0: its distances end there");
    if (geometry.window_mode != KVASIR_WINDOW_ROLLING)
      sdk::fail_invalid("infllm needs window_mode = \"rolling\": no distance exceeds the window");
  }

  void bind(const kvasir_geometry& geometry) {
    BlockChoice::bind(geometry);
    pos_const_ = geometry.window_tokens - 1;
  }

  void limits(kvasir_sel_limits& out) const {
    BlockChoice::limits(out);
    out.prefill.slice_tokens = slice_tokens_;
    out.positions = {KVASIR_POS_CONSTANT, pos_const_};
  }

 private:
  uint32_t slice_tokens_;
  uint32_t pos_const_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.infllm", "0.1.0", InfLlm)
