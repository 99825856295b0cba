// The streaming selector in the runtime against its oracle.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/streaming.h"

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

// Chooses tokens: the forced range is exact, and nothing of the rest is taken.
struct Streaming : Follower {
  CacheLayout cache;
  explicit Streaming(const CacheLayout& of) : cache(of) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Streaming>(*this); }
  Expected expect(const Track& track, uint32_t, uint32_t) override {
    const uint32_t n = track.size();
    // The paper's window holds the current token; with none at all the current token is attended.
    const Indices kept = streaming::kept(cache.sink_tokens, std::max(cache.window_tokens, 1u), n);
    const Forced forced = forced_tokens(cache, n, track.prompt_end());
    CHECK(with_forced(forced, {}, n) == kept);
    const Indices rest = candidate_tokens(cache, n, track.prompt_end());
    return {forced, 1, {rest, Vector(rest.size(), 0.0), 0, 0}};
  }
};

TEST_CASE("sink and window are attended, nothing else") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const Case of = make_case(i, {});
    duel(of, {"[selector]\nplugin = 'kvasir.streaming'\n", "", 0},
         std::make_unique<Streaming>(of.cache), report);
  }
  conclude(report, "streaming");
}

}  // namespace
