// A selector that guesses tokens per kv head, a layer ahead as InfiniGen does, but looks at no key:
// every fourth or so, others in each layer, head and step.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

class GuessSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.guess", {}, {.needs = KVASIR_NEED_TOKEN_ITEMS});

  GuessSelector(const sdk::Host&, const sdk::Options&) {}
  void bind(const kvasir_geometry& geometry) { n_kv_heads_ = geometry.n_kv_heads; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    out.speculation.layers_ahead = 1;
  }

  void speculate(const sdk::Step& step, uint32_t target_layer, const kvasir_sel_in&,
                 kvasir_selection& out) const {
    guess(step, target_layer, out);
    out.flags = KVASIR_SELECTION_FINAL;
  }
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    guess(step, step.layer(), out);
  }

 private:
  void guess(const sdk::Step& step, uint32_t layer, kvasir_selection& out) const {
    std::vector<std::vector<uint32_t>> lists(step.n_seqs() * n_kv_heads_);
    for (uint32_t i = 0; i < lists.size(); ++i) {
      const uint32_t seq = i / n_kv_heads_, head = i % n_kv_heads_;
      const sdk::Candidates from = step.candidates(seq, head);
      for (uint64_t c = 0; c < from.size(); ++c) {
        uint32_t x = (from[c] * 31 + step.seq(seq).kv_len) * 31 + layer * 7 + head;
        x = (x ^ x >> 7) * 0x9e3779b1;
        if (x >> 30 == 0) lists[i].push_back(from[c]);
      }
    }
    sdk::write_lists(out, KVASIR_SCOPE_KV_HEAD, lists);
  }

  uint32_t n_kv_heads_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.guess", "0.1.0", GuessSelector)
