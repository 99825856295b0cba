// See call_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cuda/call_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "plugins/attention/cuda/carried_rows.h"
#include "plugins/shared/kv_type.h"

namespace kvasir::attention {
namespace {

using cuda::KvType;
using sdk::kv_type;

constexpr uint32_t kNoNumber = UINT32_MAX;  // of a block that no list has named

bool same_queries(const kvasir_attn_part& a, const kvasir_attn_part& b) {
  return a.q.data == b.q.data && a.q.shape[0] == b.q.shape[0] && a.q.stride[0] == b.q.stride[0];
}
bool is_host(uint32_t mem_kind) { return mem_kind <= KVASIR_MEM_PINNED; }
uint64_t address(const void* data) { return reinterpret_cast<uint64_t>(data); }

}  // namespace

struct CallBuilder::Part {
  const kvasir_attn_part& given;
  cuda::AttentionPart& out;
  const PartTable* table = nullptr;
  bool has_kind = false, is_carried = false;  // where K and V lie
  uint64_t n_items = 0;                       // that ranges name, from the first on
  uint32_t n_blocks = 0;                      // that have a number
  // Items that a range named, all of whose leases hold all kv heads: other ranges may name the
  // same.
  uint64_t known_begin = 0, known_end = 0;

  bool is_known(const kvasir_attn_range& range) const {
    return known_begin <= range.item_begin && range.item_end <= known_end;
  }
};

CallBuilder::CallBuilder(const Geometry& geometry) : geometry_(geometry) {
  for (const kvasir_kv_format& f : geometry.formats) {
    const auto known = [&](uint32_t dtype) {  // one that no lease uses is nobody's trouble
      return dtype < 64 && sdk::kElementTypes & KVASIR_DTYPE_BIT(dtype) ? kv_type(dtype)
                                                                        : KvType::kMixed;
    };
    formats_.push_back({known(f.dtype_k), known(f.dtype_v), f.k_token_stride, f.v_token_stride,
                        f.k_head_stride, f.v_head_stride});
  }
  for (size_t i = 0; i < geometry.formats.size(); ++i) {
    const cuda::KvFormat f = formats_[i];
    if (f.k_type == KvType::kMixed || f.v_type == KvType::kMixed) {
      formats_.push_back(f);
      continue;
    }
    formats_.push_back({f.k_type, f.v_type, packed_stride(f.k_type, geometry.head_dim),
                        packed_stride(f.v_type, geometry.v_dim), 0, 0});
  }
}

KvType CallBuilder::common_type() const {
  if (geometry_.formats.empty()) return KvType::kMixed;
  for (size_t i = 0; i < geometry_.formats.size(); ++i)
    if (formats_[i].k_type != formats_[0].k_type || formats_[i].v_type != formats_[0].k_type)
      return KvType::kMixed;
  return formats_[0].k_type;
}

cuda::AttentionShape CallBuilder::shape() const {
  return {geometry_.n_q_heads,  geometry_.n_kv_heads,    geometry_.head_dim, geometry_.v_dim,
          geometry_.block_size, geometry_.softmax_scale, geometry_.softcap};
}

void CallBuilder::build(const kvasir_attn_in& in, const DeviceLists* there, CallLists& out) {
  out.packer.clear();
  out.ranges.clear();
  out.by_token.clear();
  out.is_carried.clear();
  out.n_queries = 0;
  out.type = KvType::kMixed;
  has_type_ = false;
  parts_.clear();
  out.packer.reserve(Packer::kAlignment);  // offset 0 says: none
  const kvasir_attn_part* before = nullptr;
  const auto table_of = [&](size_t part) -> const PartTable* {
    return there && there->tables[part].blocks ? &there->tables[part] : nullptr;
  };
  for (const kvasir_attn_part& part : parts_of(in)) {
    add_part(part, before, table_of(parts_.size()), out);
    before = &part;
  }
  out.n_chosen = 0;
  if (there) add_chosen(in, *there, out);
  out.formats = out.packer.put(formats_);
  out.parts = out.packer.put(parts_);
  uint64_t at = out.parts;
  size_t i = 0;
  for (const kvasir_attn_part& part : parts_of(in)) {
    const auto relocate = [&](size_t field) { out.packer.is_address(at + field); };
    if (is_host(part.q.mem_kind)) relocate(offsetof(cuda::AttentionPart, q));
    if (is_host(part.q_pos.mem_kind)) relocate(offsetof(cuda::AttentionPart, q_pos));
    const bool is_carried = out.is_carried[i], is_in_table = table_of(i++) != nullptr;
    if (!is_carried) {
      if (!is_in_table) relocate(offsetof(cuda::AttentionPart, blocks));
      if (part.items) relocate(offsetof(cuda::AttentionPart, items));
    }
    if (part.log_weight && part.weight_width != 0)
      relocate(offsetof(cuda::AttentionPart, log_weight));
    at += sizeof(cuda::AttentionPart);
  }
}

void CallBuilder::add_part(const kvasir_attn_part& given, const kvasir_attn_part* before,
                           const PartTable* table, CallLists& out) {
  check_part(geometry_, given);
  const uint64_t n_queries = given.q.shape[0];
  if (given.q_pos.rank != 1 || given.q_pos.dtype != KVASIR_DTYPE_U32 ||
      given.q_pos.shape[0] < n_queries) {
    sdk::fail_invalid("a part without q_pos");
  }
  Part part{given, parts_.emplace_back(), table};
  cuda::AttentionPart& to = part.out;
  const uint64_t query_floats = uint64_t{geometry_.n_q_heads} * geometry_.head_dim;
  if (before && same_queries(*before, given)) {  // as those of a piece of a prompt
    to.q = parts_[parts_.size() - 2].q;
    to.q_stride = parts_[parts_.size() - 2].q_stride;
  } else if (is_host(given.q.mem_kind)) {
    to.q = out.packer.reserve(n_queries * query_floats * sizeof(float));
    to.q_stride = query_floats;
    const auto* from = static_cast<const std::byte*>(given.q.data);
    for (uint64_t i = 0; i < n_queries; ++i) {
      std::memcpy(out.packer.at(to.q + i * query_floats * sizeof(float)),
                  from + static_cast<int64_t>(i) * given.q.stride[0], query_floats * sizeof(float));
    }
  } else {
    to.q = address(given.q.data);
    to.q_stride = static_cast<uint64_t>(given.q.stride[0]) / sizeof(float);
  }
  to.q_pos = is_host(given.q_pos.mem_kind)
                 ? out.packer.put(given.q_pos.data, n_queries * sizeof(uint32_t))
                 : address(given.q_pos.data);
  to.by_token = given.unit == KVASIR_UNIT_TOKEN;
  to.weight_width = given.weight_width;
  to.dist_min = given.dist_min;
  to.dist_max = given.dist_max;
  out.by_token.push_back(to.by_token != 0);
  out.n_queries = std::max(out.n_queries, static_cast<uint32_t>(n_queries));

  blocks_.clear();
  number_of_.assign(table ? 0 : given.n_leases, kNoNumber);
  items_.clear();
  for (const kvasir_attn_range& range : ranges_of(given)) add_range(part, range, out);
  out.is_carried.push_back(part.is_carried);
  if (!part.is_carried) {
    to.blocks = table ? table->blocks : out.packer.put(blocks_);
    for (size_t i = 0; i < blocks_.size(); ++i)
      if (blocks_[i].pos)
        out.packer.is_address(to.blocks + i * sizeof(cuda::KvBlock) + offsetof(cuda::KvBlock, pos));
    if (given.items) to.items = out.packer.put(items_);
  }
  if (given.log_weight && given.weight_width != 0) {
    to.log_weight =
        out.packer.put(given.log_weight, part.n_items * given.weight_width * sizeof(float));
  }
}

void CallBuilder::add_range(Part& part, const kvasir_attn_range& range, CallLists& out) {
  check_range(geometry_, part.given, range);
  out.ranges.push_back({static_cast<uint32_t>(parts_.size() - 1), range.kv_head, range.q_begin,
                        range.n_q, range.item_begin, range.item_end, 0, 0,
                        range.flags & KVASIR_ATTN_RANGE_PREFILL ? 1u : 0u});
  part.n_items = std::max(part.n_items, range.item_end);
  if (part.table) return add_items(part, range, *part.table);
  if (part.is_known(range)) return;  // as those of all kv heads of a dense step
  bool holds_all_heads = true;
  for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
    const uint64_t item = item_value(part.given, i);
    const uint64_t ordinal = part.out.by_token ? item / geometry_.block_size : item;
    const kvasir_lease& lease = geometry_.lease(part.given, ordinal);
    const kvasir_kv_format& format = geometry_.format(lease);
    if (part.has_kind && part.is_carried != is_host(format.mem_kind))
      sdk::fail_invalid("a part whose leases lie in host and in device memory: make two of it");
    part.has_kind = true;
    part.is_carried = is_host(format.mem_kind);
    geometry_.head_of(lease, range.kv_head);
    holds_all_heads = holds_all_heads && lease.kv_head == KVASIR_ALL_HEADS;
    if (part.out.by_token) geometry_.token_of(lease, item);
    if (lease.n_tokens != 0) note_type(lease.format, out);
    if (part.is_carried) continue;
    const uint64_t number = number_of(part, ordinal);
    if (part.given.items) {
      items_.resize(part.n_items);
      items_[i] = static_cast<uint32_t>(
          part.out.by_token ? number * geometry_.block_size + item % geometry_.block_size : number);
    }
    name_block(number, lease, out);
  }
  if (!holds_all_heads) return;
  part.known_begin = range.item_begin;
  part.known_end = range.item_end;
}

// Blocks of a table are numbered as leases are.
void CallBuilder::add_items(Part& part, const kvasir_attn_range& range, const PartTable& table) {
  items_.resize(part.n_items);
  for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
    items_[i] = part.given.items[i];
    if (items_[i] >= table.n_blocks)
      sdk::fail_invalid("an item names lease " + std::to_string(items_[i]) + ", the part has " +
                        std::to_string(table.n_blocks));
  }
}

// Where they go among the items of their parts.
void CallBuilder::add_chosen(const kvasir_attn_in& in, const DeviceLists& there, CallLists& out) {
  const kvasir_attn_lists& given = there.given;
  const sdk::Strided<const kvasir_attn_list> lists(given.lists, given.n_lists, given.list_size);
  chosen_.clear();
  for (const kvasir_attn_list& list : lists) {
    const PartTable& table = there.tables[list.part];
    const kvasir_attn_part& part = parts_of(in)[list.part];
    bool is_held = false;
    for (const kvasir_attn_range& range : ranges_of(part))
      is_held =
          is_held || (range.item_begin <= list.item_begin && list.item_begin <= range.item_end &&
                      list.n <= range.item_end - list.item_begin);
    if (!is_held || list.first > given.index.shape[0] || list.n > given.index.shape[0] - list.first)
      sdk::fail_invalid("a list on the device reaches past its range, or past the indices");
    chosen_.push_back({address(given.index.data) + list.first * sizeof(uint32_t),
                       parts_[list.part].items + list.item_begin * sizeof(uint32_t),
                       static_cast<uint32_t>(list.n), table.n_blocks, table.empty, 0});
  }
  out.n_chosen = static_cast<uint32_t>(chosen_.size());
  out.chosen = out.packer.put(chosen_);
  for (size_t i = 0; i < chosen_.size(); ++i)
    out.packer.is_address(out.chosen + i * sizeof(cuda::ChosenList) +
                          offsetof(cuda::ChosenList, items));
  out.type = out.ranges.empty() ? out.type : common_type();
}

// In the order in which lists name them, for of a long context they name few; without a list item i
// is block i.
uint64_t CallBuilder::number_of(Part& part, uint64_t ordinal) {
  uint32_t& number = number_of_[ordinal];
  if (number == kNoNumber) {
    number = part.given.items ? part.n_blocks++ : static_cast<uint32_t>(ordinal);
    if (blocks_.size() <= number) blocks_.resize(uint64_t{number} + 1);
  }
  return number;
}

void CallBuilder::name_block(uint64_t number, const kvasir_lease& lease, CallLists& out) {
  cuda::KvBlock& block = blocks_[number];
  if (block.n_tokens != 0 || lease.n_tokens == 0) return;
  block.n_tokens = lease.n_tokens;
  block.first_pos = lease.pos_begin;
  if (lease.token_pos)
    block.pos = out.packer.put(lease.token_pos, lease.n_tokens * sizeof(uint32_t));
  block.k = address(lease.k);
  block.v = address(lease.v);
  block.format = lease.format;
  block.is_one_head = lease.kv_head != KVASIR_ALL_HEADS;
}

// The kernels know one type, or that there are several.
void CallBuilder::note_type(uint32_t format, CallLists& out) {
  const KvType k = kv_type(geometry_.formats[format].dtype_k);
  const KvType v = kv_type(geometry_.formats[format].dtype_v);
  if (!has_type_) {
    has_type_ = true;
    out.type = k == v ? k : KvType::kMixed;
  } else if (k != out.type || v != out.type) {
    out.type = KvType::kMixed;
  }
}

}  // namespace kvasir::attention
