// Finds vocabulary texts that stand for one token as a whole ("<|im_end|>") in a prompt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvasir {

class SpecialTokens {
 public:
  struct Match {
    size_t begin, end;
    int32_t id;
  };

  // `text` must outlive this object. `always`: found even when special tokens are not asked for.
  void add(std::string_view text, int32_t id, bool always);
  // The leftmost match at or after `from`, the longest of those that start there.
  std::optional<Match> find(std::string_view text, size_t from, bool parse_special) const;

 private:
  struct Target {
    int32_t id;
    bool always;
  };
  std::unordered_map<std::string_view, Target> targets_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte: distinct lengths, longest first
};

}  // namespace kvasir
