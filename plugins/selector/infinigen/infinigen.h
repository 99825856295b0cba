// InfiniGen as a selector: its slots by subject, in infinigen.cc (what it asks of the host),
// records.cc (columns and partial keys), speculation.cc (choosing tokens) and pool.cc (victims).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/sequences.h>

#include "plugins/selector/infinigen/options.h"
#include "plugins/selector/infinigen/partial_index.h"
#include "plugins/selector/infinigen/state.h"
#include "plugins/shared/key_values.h"

namespace kvasir::infinigen {

class InfiniGen : public sdk::Sequences<State> {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.infinigen",
       .version = "0.1.0",
       .name = "InfiniGen",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Speculates one layer ahead with partial skewed keys which tokens matter.",
       .options = kOptions,
       .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
       .needs = KVASIR_NEED_TOKEN_ITEMS,
       .dtypes = sdk::kElementTypes});

  InfiniGen(const sdk::Host& host, const sdk::Options& options) : host_(host), o_(options) {}

  void validate(const kvasir_geometry& geometry) const { sdk::require_rotated_keys(geometry); }
  void bind(const kvasir_geometry& geometry);
  void limits(kvasir_sel_limits& out) const;
  void layout(kvasir_layout& out) const;
  void prefill(const sdk::Step& step, const kvasir_sel_in& in);
  void update(const sdk::Step& step, const sdk::UpdateItems& items);
  kvasir_status speculate(const sdk::Step& step, uint32_t target_layer, const kvasir_sel_in& in,
                          kvasir_selection& out);
  kvasir_status select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out);
  void observe(const sdk::Step& step, const kvasir_mass& mass);
  void evict_plan(const sdk::Step& step, kvasir_selection& out);

  const void* get_extension(const char* id) const { return sdk::state_if_asked<InfiniGen>(id); }
  void save(uint64_t seq, sdk::StateWriter& out) {
    const State& state = state_of(seq);
    save_state(state.layers.empty() ? fresh_ : state, shape(), out);
  }
  void load(uint64_t seq, sdk::StateReader& in) { state_of(seq) = load_state(fresh_, shape(), in); }

 private:
  uint32_t group_size() const { return geometry_.n_q_heads / geometry_.n_kv_heads; }
  StateShape shape() const {
    return {geometry_.n_layers, geometry_.n_kv_heads,  geometry_.head_dim,
            format_.n_columns,  geometry_.max_context, o_.skew_tokens != 0};
  }
  uint64_t state_bytes() const;
  // `budget` of n tokens.
  uint64_t share(uint32_t n) const { return static_cast<uint64_t>(o_.budget * n); }
  // int(ratio * head_dim), as published.
  uint32_t columns_of(double ratio) const {
    const auto n = static_cast<uint32_t>(ratio * geometry_.head_dim);
    return std::clamp(n, 1u, geometry_.head_dim);
  }
  // The file's, or identity.
  Skew skew(uint32_t layer, uint32_t kv_head) const {
    const uint64_t dim = geometry_.head_dim;
    const uint64_t at = (uint64_t{layer} * geometry_.n_kv_heads + kv_head) * dim * dim;
    return {skew_.empty() ? nullptr : skew_.data() + at, geometry_.head_dim};
  }
  Skew skew(const Head& of, uint32_t layer, uint32_t kv_head) const {
    if (of.own_skew.empty()) return skew(layer, kv_head);
    return {of.own_skew.data(), geometry_.head_dim};
  }
  // Of a head's q_sum: see state.h.
  uint32_t n_sums() const {
    const uint32_t dim = geometry_.head_dim;
    return o_.skew_tokens != 0 ? dim * (dim + 1) / 2 : dim;
  }
  bool sums_keys() const { return o_.columns != ColumnScore::kQuery && !o_.offline_columns; }
  // Before anything runs in parallel.
  void begin(const sdk::Step& step) {
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      State& state = state_of(step.seq(s).id);
      if (state.layers.empty()) state = fresh_;
    }
  }
  Head& head(uint64_t seq, uint32_t layer, uint32_t kv_head) {
    auto& heads = state_of(seq).layers.at(layer).heads;
    if (kv_head >= heads.size()) {
      sdk::fail_invalid("layer " + std::to_string(layer) + " is dense, and was called for");
    }
    return heads[kv_head];
  }
  sdk::Candidates candidates(const sdk::Step& step, uint32_t list) const {
    return step.candidates(list / geometry_.n_kv_heads, list % geometry_.n_kv_heads);
  }
  // fn(sequence, kv_head), in parallel.
  template <class Fn>
  void each_head(const sdk::Step& step, const Fn& fn) const {
    host_.for_each(uint64_t{step.n_seqs()} * geometry_.n_kv_heads,
                   [&](uint32_t i) { fn(i / geometry_.n_kv_heads, i % geometry_.n_kv_heads); });
  }

  // query(i): of the n queries the group's heads side by side; added to the head's sums.
  template <class Query>
  void add_queries(uint32_t layer, uint32_t kv_head, uint32_t n, std::vector<double>& sum,
                   const Query& query) const;
  // fn(first token, n, keys [n][head_dim]) over tokens [begin, end) of an item's block.
  template <class Fn>
  void each_batch(const kvasir_update_item& item, uint32_t kv_head, uint32_t begin, uint32_t end,
                  const Fn& fn) const;
  void begin_without_prompt(const sdk::Step& step, uint32_t s);
  void sum_keys(const sdk::Step& step, const sdk::UpdateItems& items);
  void count_recent(const sdk::Step& step, uint32_t layer, const float* q);
  void choose_columns(const sdk::Step& step, uint32_t s);
  void skew_by(const std::vector<double>& sums, Head& of) const;
  std::vector<uint16_t> best_columns(std::vector<double> q_sum,
                                     const std::vector<double>& k_sum) const;
  void write(const sdk::Step& step, const kvasir_update_item& item, uint32_t kv_head);

  kvasir_status choose_tokens(const sdk::Step& step, uint32_t layer, const kvasir_sel_in& in,
                              kvasir_selection& out);
  struct ScoreTask {  // some candidates of one list
    uint32_t list;
    uint64_t begin, end;  // in scores_
    uint64_t n_read = 0;  // bytes of records
    float best = 0.0f;
    uint32_t n_near = 0;  // candidates within alpha of the list's best
  };
  // Returns the bytes of records that it read.
  uint64_t score_chunk(const sdk::Step& step, uint32_t layer, const ScoreTask& task,
                       const float* q);
  void reduce(const float* dots, uint64_t stride, uint64_t n, float* out) const;
  std::vector<uint32_t> common_counts(const sdk::Step& step, std::vector<ScoreTask>& tasks) const;
  void take_best(const float* scores, const sdk::Candidates& from, std::span<uint32_t> list,
                 uint32_t worker) const;
  void hit(std::vector<uint32_t>& used, uint32_t token, uint32_t kv_len) const;

  sdk::Host host_;
  OptionValues o_;
  kvasir_geometry geometry_{};
  sdk::LeasedKeys keys_;
  uint32_t n_decode_ = 0, n_prefill_ = 0;  // columns used per phase
  PartialFormat format_;
  std::vector<float> skew_;  // [layer][kv head][column][head_dim], or empty: identity
  State fresh_;
  // Of one call of choose_tokens(): candidates of list i have scores [offsets_[i], offsets_[i +
  // 1]).
  std::vector<uint64_t> offsets_;
  std::vector<float> scores_;
};

}  // namespace kvasir::infinigen
