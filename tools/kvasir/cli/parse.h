// What a flag says, as numbers: counts of tokens, ids.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir::tool {

// "4096", "32K" (x 1024), "1M". Error naming `flag`.
uint64_t parse_count(const std::string& text, const std::string& flag);
// Separated by commas; each at least `least`, which is 0 or 1.
std::vector<uint32_t> parse_counts(const std::string& list, const std::string& flag,
                                   uint32_t least = 1);
// The parts between commas (or another separator); one empty part of an empty text.
std::vector<std::string> split(const std::string& text, char separator);
// Ids separated by commas or white space.
std::vector<TokenId> parse_token_ids(std::string_view list, const std::string& flag);

}  // namespace kvasir::tool
