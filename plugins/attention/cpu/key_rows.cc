// Items and leases to the kernels' K and V rows: block bounds, token lists, weights, positions.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cpu/key_rows.h"

#include <algorithm>

#include "plugins/shared/element_type.h"

namespace kvasir::attention {

using kernels::ElementType;
using kernels::KvRows;

namespace {

uint32_t position(const kvasir_lease& lease, uint32_t token) {
  return lease.token_pos ? lease.token_pos[token] : lease.pos_begin + token;
}

// Of blocks that were chosen among many, nothing foresees where their leases lie.
void ask_for_leases(const Geometry& geometry, const kvasir_attn_part& part, uint64_t begin,
                    uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    const auto* lease =
        reinterpret_cast<const std::byte*>(&geometry.lease(part, item_value(part, i)));
    __builtin_prefetch(lease);
    __builtin_prefetch(lease + sizeof(kvasir_lease) - 1);
  }
}

// K and V of a block: pointers, strides, positions.
KvRows block_rows(const Geometry& geometry, const kvasir_lease& lease, uint32_t kv_head) {
  const kvasir_kv_format& format = geometry.format(lease);
  const uint64_t head = geometry.head_of(lease, kv_head);
  KvRows rows;
  rows.k = static_cast<const std::byte*>(lease.k) + head * format.k_head_stride;
  rows.v = static_cast<const std::byte*>(lease.v) + head * format.v_head_stride;
  rows.k_token_stride = format.k_token_stride;
  rows.v_token_stride = format.v_token_stride;
  rows.first_pos = lease.pos_begin;
  rows.pos = lease.token_pos;
  return rows;
}

}  // namespace

struct KeyRows::Visible {
  int64_t low = 0;
  int64_t high = INT64_MAX;
  bool filters = false;

  Visible(const kvasir_attn_part& part, std::optional<uint32_t> q_pos) : filters(q_pos) {
    if (!q_pos) return;
    high = int64_t{*q_pos} - part.dist_min;
    if (part.dist_max != UINT32_MAX) low = int64_t{*q_pos} - part.dist_max + 1;
  }
  bool operator()(uint32_t pos) const { return low <= pos && pos <= high; }
};

void KeyRows::build(const Geometry& geometry, const kvasir_attn_part& part, uint32_t kv_head,
                    uint64_t begin, uint64_t end, std::optional<uint32_t> q_pos) {
  rows_.clear();
  runs_.clear();
  // Rows point into these: they must not move. Every item gives at most so many tokens.
  tokens_.clear();
  weights_.clear();
  tokens_.reserve((end - begin) * geometry.keys_per_item(part));
  const uint32_t width = part.log_weight ? part.weight_width : 0;
  if (part.unit == KVASIR_UNIT_TOKEN) weights_.reserve((end - begin) * width);
  const Visible visible(part, q_pos);
  if (part.unit == KVASIR_UNIT_BLOCK) ask_for_leases(geometry, part, begin, end);
  for (uint64_t i = begin; i < end;) {
    if (part.unit == KVASIR_UNIT_TOKEN) {
      i = add_tokens(geometry, part, kv_head, i, end, visible);
    } else {
      add_block(geometry, part, kv_head, i++, visible);
    }
  }
}

void KeyRows::ask_for_first() const {
  if (rows_.empty() || rows_[0].tokens) return;
  constexpr uint64_t kMost = 8192;
  const KvRows& first = rows_[0];
  const uint64_t bytes = std::min(kMost, (first.end - first.begin) * first.k_token_stride);
  const auto* k = static_cast<const std::byte*>(first.k) + first.begin * first.k_token_stride;
  for (uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch(k + at, 0, 2);
}

void KeyRows::add_block(const Geometry& geometry, const kvasir_attn_part& part, uint32_t kv_head,
                        uint64_t item, const Visible& visible) {
  const kvasir_lease& lease = geometry.lease(part, item_value(part, item));
  KvRows rows = block_rows(geometry, lease, kv_head);
  rows.end = lease.n_tokens;
  if (part.log_weight && part.weight_width != 0) {
    rows.log_weight = part.log_weight + item * part.weight_width;
    rows.weight_width = part.weight_width;
    rows.weight_row_stride = 0;
  }
  if (visible.filters) keep_tokens(rows, lease, visible);
  if (rows.begin < rows.end) add(geometry, lease, rows);
}

// Narrows a whole block to the tokens that are seen: by its bounds, or, when its positions lie in
// no order, by a list.
void KeyRows::keep_tokens(KvRows& rows, const kvasir_lease& lease, const Visible& visible) {
  if (!lease.token_pos) {
    const int64_t first = lease.pos_begin;
    const int64_t n = lease.n_tokens;
    rows.begin = static_cast<uint32_t>(std::clamp<int64_t>(visible.low - first, 0, n));
    if (visible.high != INT64_MAX) {
      const int64_t end = std::clamp<int64_t>(visible.high - first + 1, 0, n);
      rows.end = static_cast<uint32_t>(end);
    }
    return;
  }
  const size_t begin = tokens_.size();
  for (uint32_t t = 0; t < lease.n_tokens; ++t) {
    if (visible(lease.token_pos[t])) tokens_.push_back(t);
  }
  const size_t n = tokens_.size() - begin;
  if (n == lease.n_tokens) {
    tokens_.resize(begin);
    return;
  }
  rows.tokens = tokens_.data() + begin;
  rows.end = static_cast<uint32_t>(n);
}

// The items from `begin` on that lie in one block; returns the first that does not.
uint64_t KeyRows::add_tokens(const Geometry& geometry, const kvasir_attn_part& part,
                             uint32_t kv_head, uint64_t begin, uint64_t end,
                             const Visible& visible) {
  const uint64_t ordinal = item_value(part, begin) / geometry.block_size;
  const kvasir_lease& lease = geometry.lease(part, ordinal);
  KvRows rows = block_rows(geometry, lease, kv_head);
  const uint32_t width = part.log_weight ? part.weight_width : 0;
  rows.tokens = tokens_.data() + tokens_.size();
  rows.log_weight = width ? weights_.data() + weights_.size() : nullptr;
  rows.weight_width = width;
  rows.weight_row_stride = width;
  uint64_t i = begin;
  for (; i < end && item_value(part, i) / geometry.block_size == ordinal; ++i) {
    const uint32_t token = geometry.token_of(lease, item_value(part, i));
    if (visible.filters && !visible(position(lease, token))) continue;
    tokens_.push_back(token);
    const float* weight = width ? part.log_weight + i * width : nullptr;
    weights_.insert(weights_.end(), weight, weight + width);
    ++rows.end;
  }
  if (rows.end != 0) add(geometry, lease, rows);
  return i;
}

void KeyRows::add(const Geometry& geometry, const kvasir_lease& lease, const KvRows& rows) {
  const kvasir_kv_format& format = geometry.format(lease);
  const ElementType k_type = sdk::element_type(format.dtype_k);
  const ElementType v_type = sdk::element_type(format.dtype_v);
  if (runs_.empty() || runs_.back().k_type != k_type || runs_.back().v_type != v_type) {
    runs_.push_back({k_type, v_type, rows_.size(), 0});
  }
  rows_.push_back(rows);
  ++runs_.back().count;
}

}  // namespace kvasir::attention
