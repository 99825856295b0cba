// Mass by position; see mass.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/mass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/runtime/select/index_lists.h"

namespace kvasir {
namespace {

uint32_t position_of(const Piece& piece, uint32_t query) {
  return piece.first_pos() + query - piece.q_begin;
}

// Drops items from the ends of a range that the backend need not read: keys before first_pos, and
// keys too near for its last query, which another part holds.
void skip_keys(const Part& part, uint32_t first_pos, uint32_t last_query, uint32_t block_size,
               kvasir_attn_range& range) {
  const auto key = [&](uint32_t item, bool last) {  // position of the item's first or last one
    if (!part.in_blocks())
      return position_in(part.abi.leases[item / block_size], item % block_size);
    const kvasir_lease& lease = part.abi.leases[item];
    return position_in(lease, last ? std::max(lease.n_tokens, 1u) - 1 : 0);
  };
  const auto is_before = [&](uint64_t i) { return key(part.item(i), true) < first_pos; };
  const auto is_too_near = [&](uint64_t i) {
    return uint64_t{key(part.item(i), false)} + part.abi.dist_min > last_query;
  };
  while (range.item_begin < range.item_end && is_before(range.item_begin)) ++range.item_begin;
  if (part.abi.dist_min == 0) return;
  while (range.item_begin < range.item_end && is_too_near(range.item_end - 1)) --range.item_end;
}

}  // namespace

uint32_t mass_follows(const RunContext& c, const Pass& pass) {
  if (c.dense_layer[pass.layer]) return 0;
  uint32_t at = 0;
  for (const Piece& piece : pass.pieces) {
    if (c.heats_by_mass(piece.prefills())) return KVASIR_ATTN_MASS_FOLLOWS;
    at |= piece.prefills() ? KVASIR_MASS_AT_PREFILL : KVASIR_MASS_AT_DECODE;
  }
  uint32_t wanted = 0;
  for (const auto& selector : c.pipeline.selectors)
    if (selector->limits().mass_level != KVASIR_MASS_LISTS) wanted |= selector->limits().mass_at;
  for (const SlabOwner& owner : c.owners) wanted |= owner.layout.mass_at;
  return wanted & at ? KVASIR_ATTN_MASS_FOLLOWS : 0;
}

void MassCall::add(const Part& part) {
  const auto& pieces = pass_.pieces;
  const auto covers = [&](const Piece& piece) {
    return part.place >= piece.place && part.place - piece.place < piece.n_places;
  };
  const auto found = std::find_if(pieces.begin(), pieces.end(), covers);
  if (found == pieces.end()) return;
  const auto at = static_cast<size_t>(found - pieces.begin());
  Asked& asked = asked_.emplace_back(Asked{&part, at, part.ranges});
  if (window_only_)
    asked.first_pos =
        forced_range(c_.cache, c_.forced_unit(), position_of(*found, part.ranges[0].q_begin) + 1,
                     found->seq->prompt_end)
            .window_begin;
  for (kvasir_attn_range& range : asked.ranges) {
    if (window_only_)
      skip_keys(part, asked.first_pos, position_of(*found, range.q_begin + range.n_q - 1),
                c_.geometry.block_size, range);
    const uint32_t first = position_of(*found, range.q_begin), from = from_pos_[at];
    const uint32_t skip = from > first ? std::min(from - first, range.n_q) : 0;
    range.q_begin += skip;
    range.n_q -= skip;
    offsets_.push_back(offsets_.back() + n_keys(part, range));
  }
}

void MassCall::make_room() {
  value_.resize(std::max<uint64_t>(offsets_.back() * c_.group_size(), 1));
}

MassCall::Share MassCall::share(bool by_window) {
  Share share;
  uint64_t first = 0;  // key that the share begins with
  size_t range_index = 0;
  for (const Asked& asked : asked_) {
    const size_t n = asked.ranges.size();
    if (asked.part->by_window == by_window) {
      if (share.parts.empty()) first = offsets_[range_index];
      for (size_t r = 1; r <= n; ++r) share.offsets.push_back(offsets_[range_index + r] - first);
      share.parts.push_back(asked.part->abi);
      share.parts.back().ranges = asked.ranges.data();
    }
    range_index += n;
  }
  share.value = value_.data() + first * c_.group_size();
  return share;
}

std::vector<std::vector<HeadMass>> MassCall::by_position() const {
  const uint32_t group = c_.group_size();
  std::vector<std::vector<HeadMass>> result(pass_.pieces.size(),
                                            std::vector<HeadMass>(c_.geometry.n_kv_heads));
  size_t range_index = 0;
  for (const Asked& asked : asked_) {
    const Part& part = *asked.part;
    for (const kvasir_attn_range& range : asked.ranges) {
      const uint64_t begin = offsets_[range_index], end = offsets_[range_index + 1];
      ++range_index;
      if (range.n_q == 0) continue;
      const std::span<const float> values(value_.data() + begin * group, (end - begin) * group);
      HeadMass& head = result[asked.piece][range.kv_head];
      // In hybrid mode the window's keys follow the context's.
      const bool follows =
          head.pos.empty() ||
          (part.in_window && head.pos.back() < first_key(part, range, c_.geometry.block_size));
      if (follows)
        append(part, range, values, asked.first_pos, head);
      else
        merge(part, range, values, asked.first_pos, head);
    }
  }
  return result;
}

void MassCall::append(const Part& part, const kvasir_attn_range& range,
                      std::span<const float> values, uint32_t first_pos, HeadMass& head) const {
  const uint32_t group = c_.group_size();
  const uint64_t most = head.pos.size() + values.size() / group;
  head.pos.reserve(most);
  head.value.resize(most * group);
  const float* value = values.data();
  float* to = head.value.data() + head.pos.size() * group;
  for_each_key(part, range, c_.geometry.block_size, [&](uint32_t pos) {
    if (pos >= first_pos) {
      head.pos.push_back(pos);
      to = std::copy_n(value, group, to);
    }
    value += group;
  });
  head.value.resize(head.pos.size() * group);
}

void MassCall::merge(const Part& part, const kvasir_attn_range& range,
                     std::span<const float> values, uint32_t first_pos, HeadMass& head) const {
  const uint32_t group = c_.group_size();
  HeadMass more;
  append(part, range, values, first_pos, more);
  // Positions ascend in a block, but not from block to block where a list says otherwise.
  std::vector<size_t> order(more.pos.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!std::is_sorted(more.pos.begin(), more.pos.end()))
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return more.pos[a] < more.pos[b]; });
  const HeadMass before = std::exchange(head, {});
  head.pos.reserve(before.pos.size() + more.pos.size());
  head.value.reserve(before.value.size() + more.value.size());
  const auto take = [&](const HeadMass& from, size_t i) {
    const float* value = from.value.data() + i * group;
    if (head.pos.empty() || head.pos.back() != from.pos[i]) {
      head.pos.push_back(from.pos[i]);
      head.value.insert(head.value.end(), value, value + group);
    } else {
      float* sum = head.value.data() + head.value.size() - group;
      for (uint32_t g = 0; g < group; ++g) sum[g] += value[g];
    }
  };
  size_t at = 0;
  for (const size_t i : order) {
    for (; at < before.pos.size() && before.pos[at] <= more.pos[i]; ++at) take(before, at);
    take(more, i);
  }
  for (; at < before.pos.size(); ++at) take(before, at);
}

}  // namespace kvasir
