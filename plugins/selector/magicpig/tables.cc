// Counting sorts by code; see tables.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/tables.h"

#include <algorithm>

namespace kvasir::magicpig {

Segment::Segment(TableLayout layout, uint32_t n_bits, uint32_t n_tables,
                 std::span<const uint32_t> tokens, std::span<const uint16_t> code,
                 std::span<const float> norm)
    : layout_(layout),
      n_bits_(n_bits),
      n_tables_(n_tables),
      n_(static_cast<uint32_t>(tokens.size())),
      base_(tokens.front()),
      norm_(tokens.back() - base_ + 1) {
  for (uint32_t i = 0; i < n_; ++i) norm_[tokens[i] - base_] = norm[i];
  layout == TableLayout::kCompact ? build(tokens, code, ids16_) : build(tokens, code, ids32_);
}

template <class Id>
void Segment::build(std::span<const uint32_t> tokens, std::span<const uint16_t> code,
                    std::vector<Id>& ids) {
  const uint64_t n_codes = uint64_t{1} << n_bits_, n = n_;
  const bool sorted_codes = n * sizeof(uint16_t) < (n_codes + 1) * sizeof(uint32_t);
  ids.resize(n_tables_ * n);
  if (sorted_codes) {
    codes_.resize(n_tables_ * n);
  } else {
    bounds_.resize(n_tables_ * (n_codes + 1));
  }
  std::vector<uint32_t> at(n_codes + 1);
  for (uint64_t table = 0; table < n_tables_; ++table) {
    std::fill(at.begin(), at.end(), 0u);
    for (uint64_t i = 0; i < n; ++i) ++at[code[i * n_tables_ + table] + 1u];
    for (uint64_t c = 0; c < n_codes; ++c) at[c + 1] += at[c];
    if (!sorted_codes) std::copy(at.begin(), at.end(), bounds_.data() + table * (n_codes + 1));
    for (uint64_t i = 0; i < n; ++i) {
      const uint16_t c = code[i * n_tables_ + table];
      const uint64_t place = table * n + at[c]++;
      ids[place] = static_cast<Id>(tokens[i] - base_);
      if (sorted_codes) codes_[place] = c;
    }
  }
}

uint64_t Segment::bytes() const {
  return sizeof(*this) + ids16_.size() * 2 + ids32_.size() * 4 + bounds_.size() * 4 +
         codes_.size() * 2 + norm_.size() * 4;
}

uint64_t Segment::bytes(TableLayout layout, uint32_t n_bits, uint32_t n_tables, uint64_t n) {
  const uint64_t id_bytes = layout == TableLayout::kCompact ? sizeof(uint16_t) : sizeof(uint32_t);
  const uint64_t bound_bytes = ((uint64_t{1} << n_bits) + 1) * sizeof(uint32_t);
  return sizeof(Segment) + n * sizeof(float) +
         n_tables * (n * id_bytes + std::min(n * sizeof(uint16_t), bound_bytes));
}

std::pair<uint32_t, uint32_t> Segment::bucket(uint32_t table, uint16_t code) const {
  if (!bounds_.empty()) {
    const uint32_t* at = bounds_of(table, code);
    return {at[0], at[1]};
  }
  const uint16_t* begin = codes_.data() + uint64_t{table} * n_;
  const auto range = std::equal_range(begin, begin + n_, code);
  return {static_cast<uint32_t>(range.first - begin), static_cast<uint32_t>(range.second - begin)};
}

void Segment::prefetch_bounds(uint32_t table, uint32_t n, const uint16_t* code) const {
  if (bounds_.empty()) return;
  for (uint32_t i = table; i < table + n; ++i) __builtin_prefetch(bounds_of(i, code[i]));
}

namespace {

// A list of one code is rarely longer than two cache lines.
template <class Id>
void prefetch_list(const Id* begin, const Id* end) {
  if (begin == end) return;
  __builtin_prefetch(begin);
  __builtin_prefetch(end - 1);
}

}  // namespace

// Bounds and ids lie wherever the code says. They are asked for some tables ahead, or the CPU would
// wait for memory twice per table.
template <class Id>
uint64_t Segment::count_ids(const std::vector<Id>& ids, const uint16_t* code, uint8_t* hits) const {
  constexpr uint32_t kAhead = 16;  // tables
  struct List {
    const Id* begin;
    const Id* end;
  };
  List lists[kAhead];
  uint64_t n = 0;
  prefetch_bounds(0, std::min(2 * kAhead, n_tables_), code);
  for (uint32_t table = 0; table < n_tables_ + kAhead; ++table) {
    List& slot = lists[table % kAhead];
    if (table >= kAhead) {  // found kAhead tables ago
      n += static_cast<uint64_t>(slot.end - slot.begin);
      for (const Id* id = slot.begin; id < slot.end; ++id) {
        uint8_t& hit = hits[*id];
        hit = static_cast<uint8_t>(hit + (hit < 2));
      }
    }
    if (table >= n_tables_) continue;
    if (table + 2 * kAhead < n_tables_) prefetch_bounds(table + 2 * kAhead, 1, code);
    const auto [begin, end] = bucket(table, code[table]);
    const Id* list = ids.data() + uint64_t{table} * n_;
    slot = {list + begin, list + end};
    prefetch_list(slot.begin, slot.end);
  }
  return n * sizeof(Id);
}

uint64_t Segment::count(const uint16_t* code, uint8_t* hits) const {
  return layout_ == TableLayout::kCompact ? count_ids(ids16_, code, hits)
                                          : count_ids(ids32_, code, hits);
}

// What the constructor was given, of tokens before `end`.
void Segment::list(Entries& into, uint32_t end) const {
  const uint64_t first = into.tokens.size();
  std::vector<uint32_t> place(norm_.size(), UINT32_MAX);  // of an id among the entries
  std::vector<bool> present(norm_.size());
  for (uint64_t i = 0; i < n_; ++i) present[ids16_.empty() ? ids32_[i] : ids16_[i]] = true;
  for (uint32_t id = 0; id < norm_.size(); ++id) {
    if (!present[id] || base_ + id >= end) continue;
    place[id] = static_cast<uint32_t>(into.tokens.size());
    into.tokens.push_back(base_ + id);
    into.norm.push_back(norm_[id]);
  }
  into.code.resize(into.tokens.size() * n_tables_);
  if (into.tokens.size() == first) return;
  for (uint64_t table = 0; table < n_tables_; ++table) {
    const auto put = [&](uint32_t at, uint16_t code) {
      const uint64_t slot = table * n_ + at;
      const uint32_t to = place[ids16_.empty() ? ids32_[slot] : ids16_[slot]];
      if (to != UINT32_MAX) into.code[to * uint64_t{n_tables_} + table] = code;
    };
    if (bounds_.empty()) {
      for (uint32_t i = 0; i < n_; ++i) put(i, codes_[table * n_ + i]);
      continue;
    }
    for (uint32_t c = 0; c < uint32_t{1} << n_bits_; ++c) {
      const auto [begin, stop] = bucket(static_cast<uint32_t>(table), static_cast<uint16_t>(c));
      for (uint32_t i = begin; i < stop; ++i) put(i, static_cast<uint16_t>(c));
    }
  }
}

Segment::Entries Segment::entries() const {
  Entries out;
  list(out, UINT32_MAX);
  return out;
}

std::shared_ptr<const Segment> Segment::make(const Entries& of) const {
  if (of.tokens.empty()) return nullptr;
  return std::make_shared<const Segment>(layout_, n_bits_, n_tables_, of.tokens, of.code, of.norm);
}

std::shared_ptr<const Segment> Segment::cut(uint32_t end) const {
  Entries before;
  list(before, end);
  return make(before);
}

std::shared_ptr<const Segment> Segment::joined(const Segment& next) const {
  Entries all = entries();
  next.list(all, UINT32_MAX);
  return make(all);
}

}  // namespace kvasir::magicpig
