// One sequence of blocks in one layer, for tests that call a representative through the C ABI: keys
// of any element type, slab pages, step, scores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/view.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/plugin_instance.h"
#include "tests/support/slab.h"
#include "tests/support/step_data.h"

namespace kvasir::test {

using Representative = PluginInstance<kvasir_representative>;
using Keys = std::vector<std::vector<double>>;  // [token][head_dim]

// Stores x rounded to the element type (by truncation: exactness of the rounding is not the
// subject), returns what was stored.
inline double put(std::byte* at, uint32_t dtype, double x) {
  const auto f = static_cast<float>(x);
  if (dtype == KVASIR_DTYPE_F32) {
    std::memcpy(at, &f, sizeof f);
    return f;
  }
  uint16_t bits = 0;
  double value = 0;
  if (dtype == KVASIR_DTYPE_BF16) {
    uint32_t wide;
    std::memcpy(&wide, &f, sizeof f);
    bits = static_cast<uint16_t>(wide >> 16);
    wide &= 0xffff0000u;
    float back;
    std::memcpy(&back, &wide, sizeof back);
    value = back;
  } else {
    int exponent = 0;
    std::frexp(std::fabs(x), &exponent);  // |x| = m * 2^exponent, m in [0.5, 1)
    exponent = std::max(exponent, -13);
    const auto mantissa = static_cast<uint32_t>(std::ldexp(std::fabs(x), 11 - exponent));
    value = std::copysign(std::ldexp(mantissa, exponent - 11), x);
    const uint32_t biased = mantissa < 1024 ? 0 : static_cast<uint32_t>(exponent + 14);
    bits = static_cast<uint16_t>((x < 0 ? 0x8000u : 0u) | biased << 10 | (mantissa & 1023u));
  }
  std::memcpy(at, &bits, sizeof bits);
  return value;
}

// One sequence of n_blocks blocks in one layer: keys, slab, step.
struct Scene {
  kvasir_geometry geometry = small_geometry();
  kvasir_kv_format format{};
  std::vector<std::vector<std::byte>> blocks;  // K areas
  std::vector<std::vector<Keys>> keys;         // [block][kv_head]
  std::vector<kvasir_lease> leases;
  std::vector<uint32_t> n_tokens;

  kvasir_layout layout{};
  Slab slab;
  kvasir_step_seq seq{};
  kvasir_step step{};
  uint64_t bytes_read = 0;  // by the latest score()

  Scene(uint32_t dtype, uint32_t head_dim, uint32_t block_size) {
    geometry.head_dim = geometry.v_dim = head_dim;
    geometry.block_size = block_size;
    const uint64_t element = dtype == KVASIR_DTYPE_F32 ? 4 : 2;
    format.struct_size = sizeof format;
    format.dtype_k = format.dtype_v = dtype;
    format.k_token_stride = (head_dim + 3) * element;  // not contiguous
    format.k_head_stride = block_size * format.k_token_stride + 5 * element;
    geometry.formats = &format;
    geometry.n_formats = 1;
  }
  Scene(const Scene&) = delete;

  uint32_t n_blocks() const { return static_cast<uint32_t>(blocks.size()); }

  template <class Draw>
  void add_block(uint32_t tokens, Draw&& draw) {
    std::vector<std::byte> area(geometry.n_kv_heads * format.k_head_stride);
    std::vector<Keys> heads(geometry.n_kv_heads,
                            Keys(tokens, std::vector<double>(geometry.head_dim)));
    const uint64_t element = format.dtype_k == KVASIR_DTYPE_F32 ? 4 : 2;
    for (uint32_t h = 0; h < geometry.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t d = 0; d < geometry.head_dim; ++d) {
          std::byte* at =
              area.data() + h * format.k_head_stride + t * format.k_token_stride + d * element;
          heads[h][t][d] = put(at, format.dtype_k, draw(h, t, d));
        }
      }
    }
    blocks.push_back(std::move(area));
    keys.push_back(std::move(heads));
    n_tokens.push_back(tokens);
  }

  void prepare(Representative& plugin) {
    plugin.bind(geometry);
    REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
    CHECK(layout.record_bytes % 4 == 0);
    slab = Slab(geometry, layout, n_blocks());
    seq.id = 1;
    seq.unit_end = n_blocks();
    step.struct_size = sizeof step;
    step.n_seqs = 1;
    step.seq_size = sizeof seq;
    step.seqs = &seq;
    step.slab = slab.get();
    leases.clear();
    for (uint32_t b = 0; b < n_blocks(); ++b) {
      kvasir_lease lease{};
      lease.k = blocks[b].data();
      lease.n_tokens = n_tokens[b];
      lease.kv_head = KVASIR_ALL_HEADS;
      leases.push_back(lease);
    }
  }

  kvasir_update_item item(uint32_t block, uint32_t first, uint32_t n, uint32_t flags) const {
    return {0, block, first, n, first + n, flags, &leases[block], nullptr};
  }
  void update(Representative& plugin, const std::vector<kvasir_update_item>& items) {
    REQUIRE_MESSAGE(
        plugin->update(plugin.self(), &step, items.data(), static_cast<uint32_t>(items.size()),
                       sizeof items[0], plugin.err()) == KVASIR_OK,
        plugin.text());
  }
  void build(Representative& plugin) {
    prepare(plugin);
    std::vector<kvasir_update_item> items;
    for (uint32_t b = 0; b < n_blocks(); ++b) {
      items.push_back(item(b, 0, n_tokens[b], KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED));
    }
    update(plugin, items);
  }

  // Scores [head][candidate], for q [q_head][head_dim]; n candidates of the range or list. Heads
  // are query heads, with KVASIR_SCORE_SUMMED kv heads.
  std::vector<std::vector<float>> score(Representative& plugin, std::vector<float> q, size_t n,
                                        uint32_t flags = 0, uint32_t n_best = 0) {
    const uint32_t n_heads = flags & KVASIR_SCORE_SUMMED ? geometry.n_kv_heads : geometry.n_q_heads;
    kvasir_score_in in{};
    in.struct_size = sizeof in;
    in.flags = flags;
    in.n_best = n_best;
    const auto d = static_cast<int64_t>(geometry.head_dim * sizeof(float));
    in.q = {sizeof in.q,
            KVASIR_DTYPE_F32,
            q.data(),
            KVASIR_MEM_HOST,
            0,
            3,
            0,
            {1, geometry.n_q_heads, geometry.head_dim, 0},
            {d * geometry.n_q_heads, d, sizeof(float), 0}};
    std::vector<uint64_t> offsets;
    for (uint32_t h = 0; h <= n_heads; ++h) offsets.push_back(h * n);
    std::vector<float> value(n_heads * n, 12345.0f);
    kvasir_score_out out{sizeof out, 0, offsets.data(),
                         sdk::host_view(value.data(), {value.size()}), 0};
    REQUIRE_MESSAGE(plugin->score(plugin.self(), &step, &in, &out, plugin.err()) == KVASIR_OK,
                    plugin.text());
    bytes_read = out.bytes_read;
    std::vector<std::vector<float>> scores;
    for (uint32_t h = 0; h < n_heads; ++h) {
      scores.emplace_back(value.begin() + static_cast<long>(h * n),
                          value.begin() + static_cast<long>((h + 1) * n));
    }
    return scores;
  }
  std::vector<float> random_query(uint32_t seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> q(geometry.n_q_heads * geometry.head_dim);
    for (float& x : q) x = normal(random);
    return q;
  }
};

}  // namespace kvasir::test
