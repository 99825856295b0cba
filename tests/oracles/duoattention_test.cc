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
  Gated(const CacheLayout& layout, std::vector<std::vector<bool>> which)
      : cache(layout), streams(std::move(which)) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Gated>(*this); }

  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size();
    const bool all = !streams[layer][kv_head];
    const Forced forced = forced_tokens(cache, n, track.prompt_end());
    CHECK(with_forced(forced, all ? range(0, n) : Indices(), n) ==
          duoattention::attended(all, cache.sink_tokens, std::max(cache.window_tokens, 1u), n));
    const Indices rest = candidate_tokens(cache, n, track.prompt_end());
    return {forced, 1, {rest, Vector(rest.size(), 0.0), all ? rest.size() : 0, 0}};
  }
};

Rows some_gates(const Shape& shape, Random& random) {
  Rows out(shape.n_layers, Vector(shape.heads.n_kv_heads));
  for (Vector& layer : out)
    for (double& gate : layer) gate = random.below(5) / 4.0;  // many are equal
  return out;
}

std::string text_of(const Rows& gates) {
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
    options.second_prompts = options.truncates = !evicts;  // what is freed is missing later
    const Case of = make_case(i, options);
    Random random(i);
    const Rows gates = some_gates(of.shape, random);
    const uint32_t n_heads = of.shape.n_layers * of.shape.heads.n_kv_heads;
    const uint32_t n_streaming = random.below(n_heads + 1);
    const std::string tables = "[selector]\nplugin = 'kvasir.duoattention'\nhead_file = '" +
                               dir.write("full_attention_heads.tsv", text_of(gates)) +
                               "'\nsparsity = " + std::to_string((n_streaming + 0.0) / n_heads) +
                               "\nevict = " + (evicts ? "true" : "false") + "\n";
    duel(of, {tables, "", 0},
         std::make_unique<Gated>(of.cache, duoattention::streams(gates, n_streaming)), report);
  }
  conclude(report, "duoattention");
}

}  // namespace
