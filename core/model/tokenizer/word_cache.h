// Tokens of the words of one text: a word that comes again is copied from where it came first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir {

// For one output that only grows, over texts that outlive the cache.
class WordCache {
 public:
  // Appends the tokens of `word`; encode(word) appends those of one that is not known.
  template <class Encode>
  void append(std::string_view word, std::vector<TokenId>& out, Encode&& encode) {
    const auto known = known_.find(word);
    if (known != known_.end()) {
      for (size_t i = 0; i < known->second.count; ++i) {
        out.push_back(TokenId{out[known->second.begin + i]});
      }
      return;
    }
    const size_t begin = out.size();
    encode(word);
    if (word.size() <= kMaxWordBytes) known_.emplace(word, Tokens{begin, out.size() - begin});
  }

 private:
  // Longer words are rare enough that keeping their tokens costs more than finding them again.
  static constexpr size_t kMaxWordBytes = 48;
  struct Tokens {
    size_t begin, count;  // in the output
  };
  std::unordered_map<std::string_view, Tokens> known_;
};

}  // namespace kvasir
