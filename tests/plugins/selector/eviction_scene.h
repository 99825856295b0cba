// One sequence in one layer, as a selector that evicts sees it through the C ABI: mass comes in, a
// plan goes out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/view.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/heap_bytes.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace kvasir::test {

using Tokens = std::vector<uint32_t>;

// The k best of `among`, ascending: a stable sort, best score first, so that ties go to the lower.
inline Tokens best_of(const std::vector<double>& score, Tokens among, size_t k) {
  std::stable_sort(among.begin(), among.end(),
                   [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
  among.resize(std::min(k, among.size()));
  std::sort(among.begin(), among.end());
  return among;
}

class EvictionScene {
 public:
  EvictionScene(const std::string& name, const OptionValues& options,
                const kvasir_geometry& geometry, uint32_t workers = 0)
      : host(workers), selector(host, name, options), geometry_(geometry) {
    selector.bind(geometry);
    REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
    if (selector->base.seq_open) open(seq_id);
    if (selector->layout) {
      REQUIRE(selector->layout(selector.self(), &layout, selector.err()) == KVASIR_OK);
    }
    step_.struct_size = sizeof step_;
    step_.n_seqs = 1;
    step_.seq_size = sizeof seq;
    step_.seqs = &seq;
    seq.id = seq_id;
  }
  EvictionScene(const EvictionScene&) = delete;

  void open(uint64_t id) {
    REQUIRE(selector->base.seq_open(selector.self(), &id, 1, selector.err()) == KVASIR_OK);
  }
  // A prompt [begin, end) in which only the candidate range matters besides.
  void prompt(uint32_t begin, uint32_t end) {
    seq.prompt_begin = begin;
    seq.prompt_end = seq.kv_len = end;
    seq.unit_begin = geometry_.sink_tokens;
    seq.unit_end = end - geometry_.window_tokens;
  }
  void decoded() {
    ++seq.kv_len;
    seq.unit_end = seq.kv_len - geometry_.window_tokens;
  }

  // value[list][i] for tokens 0, 1, 2 …, or for tokens[list][i].
  kvasir_status observe(uint32_t layer, const std::vector<std::vector<float>>& value,
                        const std::vector<Tokens>& tokens = {}, When when = kPromptAttended) {
    std::vector<uint64_t> offsets{0};
    std::vector<float> values;
    Tokens index;
    for (size_t r = 0; r < value.size(); ++r) {
      values.insert(values.end(), value[r].begin(), value[r].end());
      if (!tokens.empty()) index.insert(index.end(), tokens[r].begin(), tokens[r].end());
      offsets.push_back(values.size());
    }
    const uint32_t n_queries[] = {1};
    const kvasir_mass mass{sizeof(kvasir_mass),
                           KVASIR_UNIT_TOKEN,
                           limits.mass.reduce,
                           static_cast<uint32_t>(value.size()),
                           n_queries,
                           offsets.data(),
                           tokens.empty() ? nullptr : index.data(),
                           sdk::host_view(values.data(), {values.size()})};
    return selector->observe(selector.self(), &at(layer, when), &mass, selector.err());
  }

  // What stays, per list; the candidates are the whole range, or `candidates` per list.
  std::vector<Tokens> plan(uint32_t layer, When when = kPromptStepEnd,
                           const std::vector<Tokens>& candidates = {}) {
    const uint32_t n_lists = limits.scope == KVASIR_SCOPE_SEQUENCE ? 1 : geometry_.n_kv_heads;
    std::vector<Tokens> from = candidates;
    if (from.empty()) from.assign(n_lists, range(seq.unit_begin, seq.unit_end));
    REQUIRE(from.size() == n_lists);
    const SelectionBuffer listed(KVASIR_UNIT_TOKEN, limits.scope, from);
    SelectionBuffer out(KVASIR_UNIT_TOKEN, limits.scope, n_lists, listed.selection.capacity);
    out.selection.action = limits.plans.action;
    kvasir_step& step = at(layer, when);
    step.candidates = candidates.empty() ? nullptr : &listed.selection;
    status = selector->evict_plan(selector.self(), &step, &out.selection, selector.err());
    step.candidates = nullptr;
    if (status != KVASIR_OK) return {};
    REQUIRE(out.selection.n_lists == n_lists);
    dropped = (out.selection.flags & KVASIR_SELECTION_DROP) != 0;
    n_listed = out.selection.list_offsets[n_lists];
    std::vector<Tokens> kept;
    for (uint32_t r = 0; r < n_lists; ++r) {
      const Tokens list = out.list(r);
      CHECK(std::is_sorted(list.begin(), list.end()));
      if (out.list_flags[r] != KVASIR_LIST_LISTED) {
        REQUIRE(out.list_flags[r] == (dropped ? KVASIR_LIST_NONE : KVASIR_LIST_ALL));
        kept.push_back(from[r]);
        continue;
      }
      Tokens stays;
      for (const uint32_t t : from[r]) {
        if (std::binary_search(list.begin(), list.end(), t) != dropped) stays.push_back(t);
      }
      kept.push_back(stays);
    }
    return kept;
  }

  kvasir_step& at(uint32_t layer, When when) {
    step_.layer = layer;
    step_.moment = when.moment;
    seq.phase = when.phase;
    step_.slab = slab;
    return step_;
  }

  FakeHost host;
  PluginInstance<kvasir_selector> selector;
  kvasir_sel_limits limits = blank_limits();
  kvasir_layout layout{};
  kvasir_step_seq seq{};
  const kvasir_slab* slab = nullptr;
  uint64_t seq_id = 1;
  kvasir_status status = KVASIR_OK;  // of the latest plan()
  bool dropped = false;              // the latest plan listed losers
  uint64_t n_listed = 0;

 private:
  kvasir_geometry geometry_;
  kvasir_step step_{};
};

// 4 query heads over 2 kv heads.
inline kvasir_geometry eviction_geometry(uint32_t sink_tokens, uint32_t window_tokens) {
  kvasir_geometry geometry = small_geometry();
  geometry.sink_tokens = sink_tokens;
  geometry.window_tokens = window_tokens;
  return geometry;
}

// Values of a few steps, so that ties are common.
inline std::vector<std::vector<float>> random_mass(uint32_t n_heads, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> out(n_heads, std::vector<float>(n));
  for (auto& head : out) {
    for (float& value : head) value = static_cast<float>(random() % 8) / 8.0f;
  }
  return out;
}

}  // namespace kvasir::test
