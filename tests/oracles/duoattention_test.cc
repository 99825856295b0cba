// DuoAttention in the runtime against its oracle: retrieval heads and streaming heads, by gates.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/duoattention.h"

#include <sstream>

#include "tests/oracles/harness/duel.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir::oracle;

struct Gated : Follower {
  CacheLayout cache;
  std::vector<std::vector<bool>> streams;
  bool drop;                 // what streaming heads do not attend to, for good
  uint32_t dropped_end = 0;  // of them, what lies between the sink and here is gone
  Gated(const CacheLayout& layout, std::vector<std::vector<bool>> which, bool evicts)
      : cache(layout), streams(std::move(which)), drop(evicts) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Gated>(*this); }

  void end_step(const Track& track) {
    const Forced forced = forced_tokens(cache, track.size(), track.prompt_end());
    if (drop) dropped_end = std::max(dropped_end, forced.window_begin);
  }
  void prompted(const Track& track) override { end_step(track); }
  void attended(const Track& track, uint32_t layer, const Attended&) override {
    if (layer + 1 == streams.size()) end_step(track);
  }
  bool has_dropped() const {
    bool any = false;
    for (const auto& layer : streams)
      for (const bool streaming : layer) any = any || streaming;
    return any && dropped_end > cache.sink_tokens;
  }

  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size();
    const bool all = !streams[layer][kv_head];
    Forced forced = forced_tokens(cache, n, track.prompt_end());
    CHECK(with_forced(forced, all ? range(0, n) : Indices(), n) ==
          duoattention::attended(all, cache.sink_tokens, std::max(cache.window_tokens, 1u), n));
    if (!all && has_dropped() && dropped_end > forced.window_begin) {  // after a cut
      forced.sink_end = std::min(cache.sink_tokens, n);
      forced.window_begin = std::max(forced.window_begin, dropped_end);
    }
    const Indices rest = range(forced.sink_end, forced.window_begin);
    return {forced, 1, {rest, Vector(rest.size(), 0.0), all ? rest.size() : 0, 0}};
  }
  Indices expect_prefill(const Track&, uint32_t layer, uint32_t kv_head, uint32_t,
                         uint32_t to) override {
    if (!streams[layer][kv_head] || !has_dropped()) return range(0, to);
    return unite(range(0, cache.sink_tokens), range(dropped_end, to));
  }
  Cut cut(const Track&, uint32_t n) const override {
    return has_dropped() && n < dropped_end ? Cut::kRefused : Cut::kPossible;
  }
  void truncated(const Track& track) override { dropped_end = std::min(dropped_end, track.size()); }
};

Vectors some_gates(const Shape& shape, Random& random) {
  Vectors out(shape.n_layers, Vector(shape.heads.n_kv_heads));
  for (Vector& layer : out)
    for (double& gate : layer) gate = random.below(5) / 4.0;  // many are equal
  return out;
}

std::string text_of(const Vectors& gates) {
  std::ostringstream out;
  for (const Vector& layer : gates)
    for (size_t h = 0; h < layer.size(); ++h)
      out << layer[h] << (h + 1 < layer.size() ? "\t" : "\n");
  return out.str();
}

TEST_CASE("streaming heads see sink and window, retrieval heads everything") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const kvasir::test::TempDir dir;
    const bool evicts = i % 3 == 0;
    CaseOptions options;
    options.n_layers = 1 + i % 4;
    const Case of = make_case(i, options);
    Random random(i);
    const Vectors gates = some_gates(of.shape, random);
    const uint32_t n_heads = of.shape.n_layers * of.shape.heads.n_kv_heads;
    const uint32_t n_streaming = random.below(n_heads + 1);
    const std::string tables = "[selector]\nplugin = 'kvasir.duoattention'\nhead_file = '" +
                               dir.write("full_attention_heads.tsv", text_of(gates)) +
                               "'\nsparsity = " + std::to_string((n_streaming + 0.0) / n_heads) +
                               "\nevict = " + (evicts ? "true" : "false") + "\n";
    duel(of, {tables, "", 0},
         std::make_unique<Gated>(of.cache, duoattention::streams(gates, n_streaming), evicts),
         report);
  }
  conclude(report, "duoattention");
}

}  // namespace
