// Walks along ascending lists of units, and their union.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// First place in [at, end), ascending without repetition, of what is not below `unit`. In runs of
// neighbours, as tokens of blocks are, without a search.
inline const uint32_t* advance_to(const uint32_t* at, const uint32_t* end, uint32_t unit) {
  if (at == end || *at >= unit) return at;
  const auto ahead = std::min<size_t>(unit - *at, static_cast<size_t>(end - at));  // no further
  const uint32_t* const last = at + ahead;
  return last != end && *last == unit ? last : std::lower_bound(at, last, unit);
}

// A set of units of a range, a bit each, that knows how many of its units lie before one.
class UnitSet {
 public:
  UnitSet(uint32_t begin, uint32_t end)
      : begin_(begin), bits_((uint64_t{end} - begin + 63) / 64), before_(bits_.size()) {}

  void add(std::span<const uint32_t> units) {
    for (const uint32_t unit : units) bits_[(unit - begin_) / 64] |= bit(unit);
  }
  // After the last add(): its units, ascending.
  std::vector<uint32_t> units() {
    uint32_t n = 0;
    for (size_t word = 0; word < bits_.size(); ++word) {
      before_[word] = n;
      n += static_cast<uint32_t>(std::popcount(bits_[word]));
    }
    std::vector<uint32_t> out(n);
    uint32_t* to = out.data();
    for (size_t word = 0; word < bits_.size(); ++word)
      for (uint64_t left = bits_[word]; left != 0; left &= left - 1)
        *to++ = begin_ + static_cast<uint32_t>(word * 64) +
                static_cast<uint32_t>(std::countr_zero(left));
    return out;
  }
  // After units(): the place in it of one of them.
  size_t place(uint32_t unit) const {
    const size_t word = (unit - begin_) / 64;
    return before_[word] + static_cast<size_t>(std::popcount(bits_[word] & (bit(unit) - 1)));
  }

 private:
  uint64_t bit(uint32_t unit) const { return uint64_t{1} << (unit - begin_) % 64; }

  uint32_t begin_;
  std::vector<uint64_t> bits_;
  std::vector<uint32_t> before_;  // [words] units in the words before
};

}  // namespace kvasir
