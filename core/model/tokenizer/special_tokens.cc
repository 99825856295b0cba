// One hash look-up per position and distinct length of the tokens starting with that byte.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/special_tokens.h"

#include <algorithm>
#include <functional>

namespace kvasir {

void SpecialTokens::add(std::string_view text, int32_t id, bool always) {
  if (text.empty() || !targets_.emplace(text, Target{id, always}).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(text[0])];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t from,
                                                        bool parse_special) const {
  if (targets_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[begin])]) {
      if (length > text.size() - begin) continue;
      const auto target = targets_.find(text.substr(begin, length));
      if (target != targets_.end() && (parse_special || target->second.always)) {
        return Match{begin, begin + length, target->second.id};
      }
    }
  }
  return std::nullopt;
}

}  // namespace kvasir
