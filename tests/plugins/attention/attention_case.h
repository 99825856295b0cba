// A call of an attention backend with random contents: blocks in memory, leases, parts, ranges.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/view.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "kernels/convert.h"
#include "plugins/shared/element_type.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace kvasir::test {

using Attention = PluginInstance<kvasir_attention>;

// Formats 0, 1, 2, 3: f16, f32, bf16, fp8_e4m3, and where groups divide the heads 4, 5: q8_0, q4_0;
// tokens outermost, all kv heads side by side.
struct AttentionCase {
  kvasir_geometry geometry;
  std::vector<kvasir_kv_format> formats;
  std::mt19937 random{1};
  std::deque<std::vector<float>> values;  // backing of q and weights
  std::deque<std::vector<std::byte>> memory;
  std::deque<std::vector<uint32_t>> numbers;  // backing of items and positions
  std::vector<kvasir_attn_part> parts;
  std::deque<std::vector<kvasir_attn_range>> ranges;
  std::deque<std::vector<kvasir_lease>> leases;
  uint32_t n_queries = 0;

  explicit AttentionCase(uint32_t n_q_heads = 6, uint32_t n_kv_heads = 2, uint32_t head_dim = 24,
                         uint32_t v_dim = 20)
      : geometry(small_geometry()) {
    geometry.n_q_heads = n_q_heads;
    geometry.n_kv_heads = n_kv_heads;
    geometry.head_dim = head_dim;
    geometry.v_dim = v_dim;
    geometry.softmax_scale = 0.3f;
    for (const uint32_t dtype : {KVASIR_DTYPE_F16, KVASIR_DTYPE_F32, KVASIR_DTYPE_BF16,
                                 KVASIR_DTYPE_FP8_E4M3, KVASIR_DTYPE_Q8_0, KVASIR_DTYPE_Q4_0}) {
      const kernels::ElementType type = sdk::element_type(dtype);
      const size_t group = kernels::group_elements(type);
      if (head_dim % group != 0 || v_dim % group != 0) continue;
      kvasir_kv_format f{};
      f.struct_size = sizeof f;
      f.dtype_k = f.dtype_v = dtype;
      f.k_head_stride = kernels::row_bytes(type, head_dim);
      f.v_head_stride = kernels::row_bytes(type, v_dim);
      f.k_token_stride = n_kv_heads * f.k_head_stride;
      f.v_token_stride = n_kv_heads * f.v_head_stride;
      formats.push_back(f);
    }
    geometry.n_formats = static_cast<uint32_t>(formats.size());
    geometry.formats = formats.data();
  }
  AttentionCase(const AttentionCase&) = delete;

  float* floats(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float>& out = values.emplace_back(n);
    for (float& x : out) x = normal(random);
    return out.data();
  }

  std::byte* stored(size_t n, uint32_t dtype) {
    const float* from = floats(n);
    const kernels::ElementType type = sdk::element_type(dtype);
    std::vector<std::byte>& out = memory.emplace_back(kernels::row_bytes(type, n));
    kernels::convert_from_f32(type, from, out.data(), n);
    return out.data();
  }

  kvasir_lease lease(uint32_t pos_begin, uint32_t n_tokens, uint32_t format) {
    kvasir_lease l{};
    const size_t tokens_of_block = size_t{geometry.block_size} * geometry.n_kv_heads;
    l.k = stored(tokens_of_block * geometry.head_dim, formats[format].dtype_k);
    l.v = stored(tokens_of_block * geometry.v_dim, formats[format].dtype_v);
    l.pos_begin = pos_begin;
    l.n_tokens = n_tokens;
    l.kv_head = KVASIR_ALL_HEADS;
    l.format = format;
    l.state = KVASIR_LEASE_RESIDENT;
    return l;
  }

  // Blocks of positions [pos_begin, pos_begin + n_tokens), appended to the leases of `part`.
  // Returns their ordinals [first, last).
  std::pair<uint64_t, uint64_t> add_tokens(size_t part, uint32_t pos_begin, uint32_t n_tokens,
                                           uint32_t format = 0) {
    const uint64_t first = leases[part].size();
    for (uint32_t t = 0; t < n_tokens; t += geometry.block_size) {
      const uint32_t n = std::min(geometry.block_size, n_tokens - t);
      leases[part].push_back(lease(pos_begin + t, n, format));
    }
    return {first, leases[part].size()};
  }

  // A part whose queries sit at `positions`.
  size_t add_part(const std::vector<uint32_t>& positions, uint32_t unit = KVASIR_UNIT_BLOCK) {
    n_queries = static_cast<uint32_t>(positions.size());
    kvasir_attn_part part{};
    part.struct_size = sizeof part;
    part.unit = unit;
    part.range_size = sizeof(kvasir_attn_range);
    part.lease_size = sizeof(kvasir_lease);
    part.dist_max = UINT32_MAX;
    part.q_pos = sdk::host_view(numbers.emplace_back(positions).data(), {positions.size()},
                                KVASIR_DTYPE_U32);
    const auto head_bytes = static_cast<int64_t>(geometry.head_dim * sizeof(float));
    part.q.struct_size = sizeof part.q;
    part.q.dtype = KVASIR_DTYPE_F32;
    part.q.data = floats(positions.size() * geometry.n_q_heads * geometry.head_dim);
    part.q.rank = 3;
    part.q.shape[0] = positions.size();
    part.q.shape[1] = geometry.n_q_heads;
    part.q.shape[2] = geometry.head_dim;
    part.q.stride[0] = geometry.n_q_heads * head_bytes;
    part.q.stride[1] = head_bytes;
    part.q.stride[2] = sizeof(float);
    ranges.emplace_back();
    leases.emplace_back();
    parts.push_back(part);
    return parts.size() - 1;
  }

  // Several queries are a piece of a prompt unless `flags` say otherwise.
  void add_range(size_t part, uint32_t kv_head, uint32_t q_begin, uint32_t n_q, uint64_t item_begin,
                 uint64_t item_end, std::optional<uint32_t> flags = {}) {
    const uint32_t usual = n_q > 1 ? KVASIR_ATTN_RANGE_PREFILL : 0u;
    ranges[part].push_back({kv_head, q_begin, n_q, flags.value_or(usual), item_begin, item_end});
  }
  void add_ranges_of_all_heads(size_t part, uint32_t q_begin, uint32_t n_q,
                               std::pair<uint64_t, uint64_t> items,
                               std::optional<uint32_t> flags = {}) {
    for (uint32_t head = 0; head < geometry.n_kv_heads; ++head) {
      add_range(part, head, q_begin, n_q, items.first, items.second, flags);
    }
  }
  void set_items(size_t part, std::vector<uint32_t> items) {
    parts[part].items = numbers.emplace_back(std::move(items)).data();
  }

  // Stable from here on: nothing may be added.
  kvasir_attn_in input() {
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].ranges = ranges[i].data();
      parts[i].n_ranges = static_cast<uint32_t>(ranges[i].size());
      parts[i].leases = leases[i].data();
      parts[i].n_leases = static_cast<uint32_t>(leases[i].size());
    }
    return {sizeof(kvasir_attn_in), 0, static_cast<uint32_t>(parts.size()),
            sizeof(kvasir_attn_part), parts.data()};
  }
};

struct AttentionResult {
  std::vector<float> o, lse;
  kvasir_status status = KVASIR_OK;
  std::string text;
};

inline constexpr float kUntouched = 77.0f;

inline AttentionResult run(Attention& backend, AttentionCase& c) {
  AttentionResult r;
  const size_t heads = size_t{c.n_queries} * c.geometry.n_q_heads;
  r.o.assign(heads * c.geometry.v_dim, kUntouched);
  r.lse.assign(heads, kUntouched);
  const kvasir_attn_in in = c.input();
  kvasir_attn_out out{
      sizeof(kvasir_attn_out), 0,
      sdk::host_view(r.o.data(), {c.n_queries, c.geometry.n_q_heads, c.geometry.v_dim}),
      sdk::host_view(r.lse.data(), {c.n_queries, c.geometry.n_q_heads}), 0};
  kvasir_step step{};
  step.struct_size = sizeof step;
  step.seq_size = sizeof(kvasir_step_seq);
  r.status = backend->run(backend.self(), &step, &in, &out, backend.err());
  r.text = backend.text();
  return r;
}

// Keys of every range of every part, in order: range_offsets of mass().
inline std::vector<uint64_t> key_offsets(const AttentionCase& c) {
  std::vector<uint64_t> offsets = {0};
  for (size_t p = 0; p < c.parts.size(); ++p) {
    for (const kvasir_attn_range& range : c.ranges[p]) {
      uint64_t n = range.item_end - range.item_begin;
      if (c.parts[p].unit == KVASIR_UNIT_BLOCK) {
        n = 0;
        for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
          n += c.leases[p][c.parts[p].items ? c.parts[p].items[i] : i].n_tokens;
        }
      }
      offsets.push_back(offsets.back() + n);
    }
  }
  return offsets;
}

inline std::vector<float> mass(Attention& backend, AttentionCase& c, const std::vector<float>& lse,
                               uint32_t width) {
  const auto offsets = key_offsets(c);
  std::vector<float> value(offsets.back() * width, kUntouched);
  const kvasir_attn_in in = c.input();
  const kvasir_attn_mass out{sizeof out, width, offsets.data(),
                             sdk::host_view(lse.data(), {c.n_queries, c.geometry.n_q_heads}),
                             sdk::host_view(value.data(), {offsets.back(), width})};
  kvasir_step step{};
  step.struct_size = sizeof step;
  const kvasir_status status = backend->mass(backend.self(), &step, &in, &out, backend.err());
  REQUIRE_MESSAGE(status == KVASIR_OK, backend.text());
  return value;
}

// max |difference| <= tolerance * max |expected|; infinities and untouched values must be equal.
inline void check_same(const std::vector<float>& actual, const std::vector<float>& expected,
                       float tolerance) {
  REQUIRE(actual.size() == expected.size());
  float scale = 0;
  float worst = 0;
  bool exact = true;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i]) || expected[i] == kUntouched) {
      exact = exact && actual[i] == expected[i];
      continue;
    }
    scale = std::fmax(scale, std::fabs(expected[i]));
    const float difference = std::fabs(actual[i] - expected[i]);
    worst = std::isnan(difference) ? std::numeric_limits<float>::infinity()
                                   : std::fmax(worst, difference);
  }
  CHECK(exact);
  CHECK(worst <= tolerance * scale);
}

}  // namespace kvasir::test
