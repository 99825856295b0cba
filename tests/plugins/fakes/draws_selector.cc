// A selector that draws tokens per query head, in the shape of MagicPIG: lists of unlike lengths,
// weighted (KVASIR_NEED_HEAD_LOG_WEIGHT) from leases of all blocks (KVASIR_NEED_KEYS), without a
// slab. Token t of a head is drawn with probability u, a hash of (seed, layer, head, t), and weighs
// -ln u. Every `refuse_every`-th selection first asks for a larger buffer. Probe: 0 = prompt-end
// items, 1 = refusals, 2 = calls of select().
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr kvasir_option_schema kOptions[] = {
    sdk::int_option({.key = "refuse_every", .help = "0 = none"}, 0, 0, 1 << 30)};

// Uniform in (0, 1): two rounds of splitmix64.
double uniform(uint64_t seed, uint32_t layer, uint32_t head, uint32_t token, uint64_t salt) {
  uint64_t x = seed ^ salt ^ (uint64_t{layer} << 52) ^ (uint64_t{head} << 36) ^ token;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return (static_cast<double>(x >> 11) + 0.5) / 9007199254740992.0;
}

class DrawsSelector {
 public:
  static constexpr kvasir_desc kDesc = fake_desc(
      KVASIR_KIND_SELECTOR, "kvasir.test.draws", kOptions,
      {.needs = KVASIR_NEED_KEYS | KVASIR_NEED_HEAD_LOG_WEIGHT | KVASIR_NEED_TOKEN_ITEMS});

  DrawsSelector(const sdk::Host&, const sdk::Options& o) : refuse_every_(o.u32("refuse_every")) {}
  const void* get_extension(const char* id) { return probe_extension<DrawsSelector>(id); }
  double probe(uint32_t item) const { return n_[item]; }
  void bind(const kvasir_geometry& geometry) { g_ = geometry; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN, out.scope = KVASIR_SCOPE_Q_HEAD;
  }
  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_SEALED_ONLY;
  }

  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    if (step.raw().slab && step.raw().slab->record_bytes)
      sdk::fail_invalid("a slab that nobody asked for");
    for (const kvasir_update_item& item : items) {
      if (!item.lease || !item.lease->k || !item.lease->v)
        sdk::fail_invalid("update() without keys and values");
      n_[0] += (item.flags & KVASIR_ITEM_PROMPT_END) != 0;
    }
  }

  kvasir_status select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    ++n_[2];
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      const uint64_t n_blocks = (step.seq(s).kv_len + g_.block_size - 1) / g_.block_size;
      if (!in.leases || in.lease_offsets[s + 1] - in.lease_offsets[s] != n_blocks)
        sdk::fail_invalid("select() without a lease of every block");
      for (uint64_t i = in.lease_offsets[s]; i < in.lease_offsets[s + 1]; ++i)
        if (in.leases[i].state != KVASIR_LEASE_RESIDENT || !in.leases[i].k) return KVASIR_FALLBACK;
    }
    const uint32_t n_lists = step.n_seqs() * g_.n_q_heads;
    std::vector<std::vector<uint32_t>> drawn(n_lists);
    std::vector<float> weight;
    for (uint32_t i = 0; i < n_lists; ++i) {
      const uint32_t head = i % g_.n_q_heads, group = g_.n_q_heads / g_.n_kv_heads;
      const sdk::Candidates from = step.candidates(i / g_.n_q_heads, head / group);
      for (uint64_t c = 0; c < from.size(); ++c) {
        const double u = 0.05 + 0.9 * uniform(g_.seed, step.layer(), head, from[c], 1);
        if (uniform(g_.seed, step.layer(), head, from[c], 2) >= u) continue;
        drawn[i].push_back(from[c]);
        weight.push_back(static_cast<float>(-std::log(u)));
      }
    }
    sdk::lay_out_lists(out, KVASIR_SCOPE_Q_HEAD, n_lists,
                       [&](uint32_t i) { return uint64_t{drawn[i].size()}; });
    if (refuse_every_ && n_[2] % refuse_every_ == 0) {
      ++n_[1];
      out.needed = out.capacity + 1;
      return KVASIR_ERR_CAPACITY;
    }
    for (uint32_t i = 0; i < n_lists; ++i)
      std::copy(drawn[i].begin(), drawn[i].end(), sdk::list_indices(out, i).begin());
    out.weight_width = 1;
    std::copy(weight.begin(), weight.end(), out.log_weight);
    return KVASIR_OK;
  }

 private:
  uint32_t refuse_every_;
  uint32_t n_[3] = {};  // of probe()
  kvasir_geometry g_{};
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.draws", "0.1.0", DrawsSelector)
