// Hash tables over a run of tokens of one kv head, never changed once built: forks share them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvasir::magicpig {

enum class TableLayout {
  kCompact,  // 16-bit ids, so at most 64K tokens per segment
  kCsr       // 32-bit ids, as published
};

constexpr uint32_t max_segment_tokens(TableLayout layout) {
  return layout == TableLayout::kCompact ? 65536 : UINT32_MAX;
}

// Per table the ids (token - base) sorted by code, and for each code where its ids begin; small
// segments keep the sorted codes themselves instead, which is less than 2^K bounds.
class Segment {
 public:
  // code [n][L] of tokens[0 .. n), ascending; norm [n] of their centred keys. tokens.back() -
  // tokens.front() is less than max_segment_tokens(layout).
  Segment(TableLayout layout, uint32_t n_bits, uint32_t n_tables, std::span<const uint32_t> tokens,
          std::span<const uint16_t> code, std::span<const float> norm);

  uint32_t begin() const { return base_; }
  uint32_t end() const { return base_ + static_cast<uint32_t>(norm_.size()); }
  float norm(uint32_t token) const { return norm_[token - base_]; }
  uint64_t bytes() const;
  // Of a segment of n tokens without gaps.
  static uint64_t bytes(TableLayout layout, uint32_t n_bits, uint32_t n_tables, uint64_t n);

  // hits[token - begin()] += 1 for each table where the token has the code, up to 2.   code [L]
  // Returns the bytes of the ids it read.
  uint64_t count(const uint16_t* code, uint8_t* hits) const;

  struct Entries {  // as the constructor takes them
    std::vector<uint32_t> tokens;
    std::vector<uint16_t> code;
    std::vector<float> norm;
  };
  Entries entries() const;

  // Its tokens before `end`, and those of `next`, which lie behind all of its own.
  std::shared_ptr<const Segment> cut(uint32_t end) const;
  std::shared_ptr<const Segment> joined(const Segment& next) const;

 private:
  void list(Entries& into, uint32_t end) const;
  std::shared_ptr<const Segment> make(const Entries& of) const;
  template <class Id>
  void build(std::span<const uint32_t> tokens, std::span<const uint16_t> code,
             std::vector<Id>& ids);
  template <class Id>
  uint64_t count_ids(const std::vector<Id>& ids, const uint16_t* code, uint8_t* hits) const;
  const uint32_t* bounds_of(uint32_t table, uint16_t code) const {
    return bounds_.data() + table * ((uint64_t{1} << n_bits_) + 1) + code;
  }
  // Of n tables from `table` on.   code [L]
  void prefetch_bounds(uint32_t table, uint32_t n, const uint16_t* code) const;
  // Places [first, second) of table's ids with that code.
  std::pair<uint32_t, uint32_t> bucket(uint32_t table, uint16_t code) const;

  TableLayout layout_;
  uint32_t n_bits_, n_tables_, n_;
  uint32_t base_;
  std::vector<uint16_t> ids16_;   // [table][n]
  std::vector<uint32_t> ids32_;   // the same, kCsr
  std::vector<uint32_t> bounds_;  // [table][2^K + 1], or
  std::vector<uint16_t> codes_;   // [table][n], sorted
  std::vector<float> norm_;       // by id; where no token was, 0
};

}  // namespace kvasir::magicpig
