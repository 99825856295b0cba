// A selector for proofs about retrieval: all tokens, all but some, or exactly the best ones; and
// the attention mass on a range of tokens. See needle_probe.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/task/plugins/needle_probe.h"

#include <kvasir/sdk/mass.h>
#include <kvasir/sdk/queries.h>

#include <algorithm>

#include "plugins/shared/exact_mass.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using Mode = test::NeedleProbe::Mode;

class NeedleSelector {
 public:
  static constexpr kvasir_desc kDesc =
      test::fake_desc(KVASIR_KIND_SELECTOR, "org.test.needle_probe", {},
                      {.needs = KVASIR_NEED_KEYS | KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});

  NeedleSelector(const sdk::Host& host, const sdk::Options&) : host_(host) {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == test::kNeedleProbe ? &state_ : nullptr;
  }
  void bind(const kvasir_geometry& geometry) {
    g_ = geometry;
    exact_ = sdk::ExactMass(geometry);
    state_.mass.assign(geometry.n_layers, std::vector<double>(geometry.n_q_heads, 0.0));
  }
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    out.mass.at = KVASIR_MASS_AT_DECODE;
    out.mass.level = KVASIR_MASS_TOKEN;
    out.mass.reduce = KVASIR_MASS_PER_Q_HEAD;
  }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    const uint32_t n_heads = g_.n_kv_heads;
    if (step.n_seqs() != 1) sdk::fail_invalid("the probe serves one sequence at a time");
    std::vector<std::vector<uint32_t>> chosen(n_heads);
    host_.parallel_for(n_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (auto h = static_cast<uint32_t>(begin); h < end; ++h) chosen[h] = choose(step, in, h);
    });
    sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_heads,
                       [&](uint32_t h) { return uint64_t{chosen[h].size()}; });
    for (uint32_t h = 0; h < n_heads; ++h)
      std::copy(chosen[h].begin(), chosen[h].end(), sdk::list_indices(out, h).begin());
  }

  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    for (uint32_t head = 0; head < g_.n_q_heads; ++head) {
      double sum = 0;
      sdk::for_each_mass(mass, head, [&](uint32_t token, float value) {
        if (token >= state_.watch_begin && token < state_.watch_end) sum += double{value};
      });
      state_.mass[step.layer()][head] = sum;
    }
  }

 private:
  bool masked(uint32_t token) const {
    return std::any_of(state_.masked.begin(), state_.masked.end(),
                       [&](const auto& m) { return token >= m.first && token < m.second; });
  }

  std::vector<uint32_t> choose(const sdk::Step& step, const kvasir_sel_in& in,
                               uint32_t kv_head) const {
    const sdk::Candidates from = step.candidates(0, kv_head);
    std::vector<uint32_t> tokens;
    for (uint64_t i = 0; i < from.size(); ++i)
      if (state_.mode != Mode::kMask || !masked(from[i])) tokens.push_back(from[i]);
    if (state_.mode != Mode::kTopK) return tokens;
    const uint32_t kv_len = step.seq(0).kv_len, group = g_.n_q_heads / g_.n_kv_heads;
    const size_t forced = kv_len - tokens.size();
    const auto budget = static_cast<size_t>(state_.share * kv_len);
    const size_t keep = std::min(budget > forced ? budget - forced : 0, tokens.size());
    const sdk::Queries q(in.q, g_.n_q_heads, g_.head_dim);
    std::vector<double> p(kv_len);  // summed over the query heads of the group
    for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
      exact_.add(in, 0, kv_len, kv_head, q.head(step.seq(0).q_begin, h), 1, p);
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(keep), tokens.end(),
                     [&](uint32_t a, uint32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
    tokens.resize(keep);
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  }

  sdk::Host host_;
  kvasir_geometry g_{};
  sdk::ExactMass exact_;
  test::NeedleProbe state_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "org.test.needle_probe", "0.1.0", NeedleSelector)
