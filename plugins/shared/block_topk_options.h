// Options of kvasir.block_topk, wherever it chooses.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <array>

#include "plugins/shared/block_budget.h"

namespace kvasir::sdk {

namespace detail {
inline constexpr const char* kTopKTokensAliases[] = {"token_budget", nullptr};
inline constexpr const char* kTopKBlocksAliases[] = {"second_block_count", "second_select_num",
                                                     "topk", "pick_block_num", nullptr};
inline constexpr const char* kTopKCompatNames[] = {"none", "ktransformers"};
}  // namespace detail

inline constexpr std::array kBlockTopKOptions = {
    budget_tokens_option(4096, detail::kTopKTokensAliases),
    budget_blocks_option(detail::kTopKBlocksAliases),
    enum_option(
        {.key = "compat", .help = "ktransformers: of equal scores the higher block goes first"},
        detail::kTopKCompatNames, 0)};

inline bool higher_block_wins(const Options& options) { return options.choice("compat") == 1; }

}  // namespace kvasir::sdk
