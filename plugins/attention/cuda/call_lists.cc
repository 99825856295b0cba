// See call_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cuda/call_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "plugins/shared/kv_type.h"

namespace kvasir::attention {
namespace {

using cuda::KvType;
using sdk::kv_type;

constexpr uint32_t kNoPlace = UINT32_MAX;  // of a block that no list has named

uint64_t row_bytes(KvType type, uint32_t width) {
  if (type == KvType::kFp8) return width;
  return kernels::row_bytes(static_cast<kernels::ElementType>(type), width);
}

// Rows as they are carried: one after the other, each aligned for loads of 16 bytes.
uint64_t carried_stride(KvType type, uint32_t width) {
  const uint64_t a = Packer::kAlignment;
  return (row_bytes(type, width) + a - 1) / a * a;
}

bool is_host(uint32_t mem_kind) { return mem_kind <= KVASIR_MEM_PINNED; }
uint64_t address(const void* data) { return reinterpret_cast<uint64_t>(data); }

}  // namespace

struct CallBuilder::Part {
  const kvasir_attn_part& given;
  cuda::AttentionPart& out;
  bool has_kind = false, is_on_host = false;  // where K and V lie
  uint64_t n_items = 0;                       // that ranges name, from the first on
  uint32_t n_places = 0;                      // blocks that have one
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
    formats_.push_back({f.k_type, f.v_type, carried_stride(f.k_type, geometry.head_dim),
                        carried_stride(f.v_type, geometry.v_dim), 0, 0});
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

void CallBuilder::build(const kvasir_attn_in& in, bool with_values, CallLists& out) {
  out.packer.clear();
  out.ranges.clear();
  out.by_token.clear();
  out.n_queries = 0;
  out.type = KvType::kMixed;
  has_type_ = false;
  with_values_ = with_values;
  parts_.clear();
  out.packer.reserve(Packer::kAlignment);  // offset 0 says: none
  for (const kvasir_attn_part& part : parts_of(in)) add_part(part, out);
  out.formats = out.packer.put(formats_);
  out.parts = out.packer.put(parts_);
  uint64_t at = out.parts;
  for (const kvasir_attn_part& part : parts_of(in)) {
    const auto relocate = [&](size_t field) { out.packer.is_address(at + field); };
    if (is_host(part.q.mem_kind)) relocate(offsetof(cuda::AttentionPart, q));
    if (is_host(part.q_pos.mem_kind)) relocate(offsetof(cuda::AttentionPart, q_pos));
    relocate(offsetof(cuda::AttentionPart, blocks));
    if (part.items) relocate(offsetof(cuda::AttentionPart, items));
    if (part.log_weight && part.weight_width != 0)
      relocate(offsetof(cuda::AttentionPart, log_weight));
    at += sizeof(cuda::AttentionPart);
  }
}

void CallBuilder::add_part(const kvasir_attn_part& given, CallLists& out) {
  check_part(geometry_, given);
  const uint64_t n_queries = given.q.shape[0];
  if (given.q_pos.rank != 1 || given.q_pos.dtype != KVASIR_DTYPE_U32 ||
      given.q_pos.shape[0] < n_queries) {
    sdk::fail_invalid("a part without q_pos");
  }
  Part part{given, parts_.emplace_back()};
  cuda::AttentionPart& to = part.out;
  const uint64_t query_floats = uint64_t{geometry_.n_q_heads} * geometry_.head_dim;
  if (is_host(given.q.mem_kind)) {
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

  to.block_heads = 1;
  blocks_.clear();
  place_of_.assign(given.n_leases, kNoPlace);
  items_.clear();
  for (const kvasir_attn_range& range : ranges_of(given)) add_range(part, range, out);
  to.blocks = out.packer.put(blocks_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const uint64_t at = to.blocks + i * sizeof(cuda::KvBlock);
    if (blocks_[i].n_tokens == 0) continue;
    if (blocks_[i].pos) out.packer.is_address(at + offsetof(cuda::KvBlock, pos));
    if (!part.is_on_host) continue;
    out.packer.is_address(at + offsetof(cuda::KvBlock, k));
    out.packer.is_address(at + offsetof(cuda::KvBlock, v));
  }
  if (given.items) to.items = out.packer.put(items_);
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
  if (part.given.items) items_.resize(part.n_items);
  for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
    const uint64_t item = item_value(part.given, i);
    const uint64_t ordinal = part.out.by_token ? item / geometry_.block_size : item;
    const kvasir_lease& lease = geometry_.lease(part.given, ordinal);
    const kvasir_kv_format& format = geometry_.format(lease);
    if (part.has_kind && part.is_on_host != is_host(format.mem_kind))
      sdk::fail_invalid("a part whose leases lie in host and in device memory: make two of it");
    if (!part.has_kind) {
      part.has_kind = true;
      part.is_on_host = is_host(format.mem_kind);
      part.out.block_heads = part.is_on_host ? geometry_.n_kv_heads : 1;
    }
    const uint64_t number = number_of(part, ordinal);
    if (part.given.items)
      items_[i] = static_cast<uint32_t>(
          part.out.by_token ? number * geometry_.block_size + item % geometry_.block_size : number);
    const uint64_t place = part.is_on_host ? number * part.out.block_heads + range.kv_head : number;
    name_block(part, place, lease, range.kv_head, out);
    if (!part.out.by_token) continue;
    const uint32_t token = geometry_.token_of(lease, item);
    if (part.is_on_host)
      carry_rows(lease, geometry_.head_of(lease, range.kv_head), place, token, token + 1, out);
  }
}

// Blocks travel in the order in which lists name them, for of a long context they name few; without
// a list item i is block i.
uint64_t CallBuilder::number_of(Part& part, uint64_t ordinal) {
  uint32_t& number = place_of_[ordinal];
  if (number == kNoPlace) {
    number = part.given.items ? part.n_places++ : static_cast<uint32_t>(ordinal);
    const uint64_t n_blocks = (uint64_t{number} + 1) * part.out.block_heads;
    if (blocks_.size() < n_blocks) blocks_.resize(n_blocks);
  }
  return number;
}

void CallBuilder::name_block(Part& part, uint64_t place, const kvasir_lease& lease,
                             uint32_t kv_head, CallLists& out) {
  const uint64_t head = geometry_.head_of(lease, kv_head);
  cuda::KvBlock& block = blocks_[place];
  if (block.n_tokens != 0 || lease.n_tokens == 0) return;
  note_type(lease.format, out);
  block.n_tokens = lease.n_tokens;
  block.first_pos = lease.pos_begin;
  if (lease.token_pos)
    block.pos = out.packer.put(lease.token_pos, lease.n_tokens * sizeof(uint32_t));
  if (!part.is_on_host) {
    block.k = address(lease.k);
    block.v = address(lease.v);
    block.format = lease.format;
    block.is_one_head = lease.kv_head != KVASIR_ALL_HEADS;
    return;
  }
  block.format = static_cast<uint32_t>(geometry_.formats.size()) + lease.format;
  block.is_one_head = 1;
  const cuda::KvFormat& carried = formats_[block.format];
  block.k = out.packer.reserve(lease.n_tokens * carried.k_token_stride);
  block.v = with_values_ ? out.packer.reserve(lease.n_tokens * carried.v_token_stride) : block.k;
  if (!part.out.by_token) carry_rows(lease, head, place, 0, lease.n_tokens, out);
}

// Row by row: nobody reads bytes that no item names.
void CallBuilder::carry_rows(const kvasir_lease& lease, uint64_t head, uint64_t place,
                             uint32_t begin, uint32_t end, CallLists& out) {
  const kvasir_kv_format& from = geometry_.format(lease);
  const cuda::KvBlock& block = blocks_[place];
  const cuda::KvFormat& to = formats_[block.format];
  const uint64_t k_bytes = row_bytes(to.k_type, geometry_.head_dim);
  const uint64_t v_bytes = row_bytes(to.v_type, geometry_.v_dim);
  const auto* k = static_cast<const std::byte*>(lease.k) + head * from.k_head_stride;
  const auto* v = static_cast<const std::byte*>(lease.v) + head * from.v_head_stride;
  for (uint32_t t = begin; t < end; ++t) {
    std::memcpy(out.packer.at(block.k + t * to.k_token_stride), k + t * from.k_token_stride,
                k_bytes);
    if (with_values_)
      std::memcpy(out.packer.at(block.v + t * to.v_token_stride), v + t * from.v_token_stride,
                  v_bytes);
  }
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
