// Mass by position; see mass.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/mass.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/runtime/select/index_lists.h"

namespace kvasir {
namespace {

uint32_t position_of(const Piece& piece, uint32_t query) {
  return piece.first_pos() + query - piece.q_begin;
}

}  // namespace

uint32_t mass_follows(const RunContext& c, const Pass& pass) {
  if (c.dense_layer[pass.layer]) return 0;
  uint32_t at = 0;
  for (const Piece& piece : pass.pieces)
    at |= piece.prefills() ? KVASIR_MASS_AT_PREFILL : KVASIR_MASS_AT_DECODE;
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
  for (kvasir_attn_range& range : asked.ranges) {
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

MassCall::Share MassCall::share(bool in_window) {
  Share share;
  uint64_t first = 0;  // key that the share begins with
  size_t range_index = 0;
  for (const Asked& asked : asked_) {
    const size_t n = asked.ranges.size();
    if (asked.part->in_window == in_window) {
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

std::vector<std::vector<HeadMass>> MassCall::by_position(bool window_only) const {
  const uint32_t group = c_.group_size();
  std::vector<std::vector<HeadMass>> result(pass_.pieces.size(),
                                            std::vector<HeadMass>(c_.geometry.n_kv_heads));
  size_t range_index = 0;
  for (const Asked& asked : asked_) {
    const Part& part = *asked.part;
    const Piece& piece = pass_.pieces[asked.piece];
    const ForcedRange forced =
        forced_range(c_.cache, c_.forced_unit(), position_of(piece, part.ranges[0].q_begin) + 1,
                     piece.seq->prompt_end);
    const uint32_t first_pos = window_only ? forced.window_begin : 0;
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
        append(part, range, values, first_pos, head);
      else
        merge(part, range, values, first_pos, head);
    }
  }
  return result;
}

void MassCall::append(const Part& part, const kvasir_attn_range& range,
                      std::span<const float> values, uint32_t first_pos, HeadMass& head) const {
  const uint32_t group = c_.group_size();
  const float* value = values.data();
  for_each_key(part, range, c_.geometry.block_size, [&](uint32_t pos) {
    if (pos >= first_pos) {
      head.pos.push_back(pos);
      head.value.insert(head.value.end(), value, value + group);
    }
    value += group;
  });
}

void MassCall::merge(const Part& part, const kvasir_attn_range& range,
                     std::span<const float> values, uint32_t first_pos, HeadMass& head) const {
  const uint32_t group = c_.group_size();
  std::map<uint32_t, std::vector<float>> sums;
  for (size_t i = 0; i < head.pos.size(); ++i)
    sums[head.pos[i]].assign(head.value.begin() + static_cast<ptrdiff_t>(i * group),
                             head.value.begin() + static_cast<ptrdiff_t>((i + 1) * group));
  const float* value = values.data();
  for_each_key(part, range, c_.geometry.block_size, [&](uint32_t pos) {
    if (pos >= first_pos) {
      std::vector<float>& sum = sums[pos];
      sum.resize(group);
      for (uint32_t g = 0; g < group; ++g) sum[g] += value[g];
    }
    value += group;
  });
  head = {};
  for (const auto& [pos, sum] : sums) {
    head.pos.push_back(pos);
    head.value.insert(head.value.end(), sum.begin(), sum.end());
  }
}

}  // namespace kvasir
