// Which tokens of which kv heads of a block: bit kv_head * block_size + token.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace kvasir::tiered {

class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(uint32_t n) : words_((n + 63) / 64), n_(n) {}
  static TokenSet range(uint32_t n, uint32_t begin, uint32_t end) {
    TokenSet out(n);
    for (uint32_t i = begin; i < end;) {
      const uint32_t n_bits = std::min(end - i, 64 - i % 64);
      out.words_[i / 64] |= (~uint64_t{0} >> (64 - n_bits)) << (i % 64);
      i += n_bits;
    }
    return out;
  }
  // Bits [0, n_bits) of `words` stand for tokens from `first` on; others are ignored.
  static TokenSet from_words(uint32_t n, uint32_t first, uint32_t n_bits, const uint64_t* words) {
    TokenSet out(n);
    for (uint32_t i = 0; i < n_bits; ++i) {
      if (i % 64 == 0 && words[i / 64] == 0)
        i += 63;
      else if (words[i / 64] >> (i % 64) & 1)
        out.add(first + i);
    }
    return out;
  }

  void add(uint32_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void add(const TokenSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  void remove(const TokenSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
  }
  bool has(uint32_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  uint32_t count() const {
    uint32_t n = 0;
    for (const uint64_t word : words_) n += static_cast<uint32_t>(std::popcount(word));
    return n;
  }
  bool empty() const { return count() == 0; }
  bool full() const { return count() == n_; }
  // The first one at or after i; size() when there is none.
  uint32_t next(uint32_t i) const {
    while (i < n_) {
      const uint64_t rest = words_[i / 64] >> (i % 64);
      if (rest) return i + static_cast<uint32_t>(std::countr_zero(rest));
      i = (i / 64 + 1) * 64;
    }
    return n_;
  }
  uint32_t size() const { return n_; }
  const uint64_t* words() const { return words_.data(); }  // as `needed` of a key has them

 private:
  std::vector<uint64_t> words_;
  uint32_t n_ = 0;
};

}  // namespace kvasir::tiered
