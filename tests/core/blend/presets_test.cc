// Every shipped strategy decodes over a blended prompt, or says why it cannot.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/core/blend/support.h"
#include "tests/strategies/table.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
}  // namespace

TEST_SUITE_BEGIN("core/blend/presets");

TEST_CASE("every shipped strategy decodes over a blend as over a plain prompt, or refuses it") {
  std::set<std::string> blended, refused;
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const auto engine = bench.engine(strategy_of(entry), wide());
    Blender blender(*engine, bench.tiny.model->shape(), 0, std::nullopt);
    const std::string why = engine->cannot_recompute(0);
    BlendPrompt prompt;
    std::vector<TokenId> plain;
    for (const auto& chunk : some_chunks()) {
      prompt.chunks.push_back(blender.chunks().add(chunk));
      plain.insert(plain.end(), chunk.begin(), chunk.end());
    }
    prompt.question = some_tokens(9, 77);
    plain.insert(plain.end(), prompt.question.begin(), prompt.question.end());
    std::vector<float> logits(300);
    BlendConfig all;
    all.ratio = 1;
    if (!why.empty()) {
      const std::string text = error_of([&] { blender.blend(prompt, all, 0, logits); });
      CHECK(text == why + ": chunks cannot be reused, read them as one prompt (mode \"full\")");
      refused.insert(entry.preset);
      continue;
    }
    blended.insert(entry.preset);
    const SequenceId over = blender.blend(prompt, all, 0, logits).seq;
    // Chunks and question are two parts of a prompt here, as in a blend.
    const SequenceId fresh = engine->open();
    const auto n = static_cast<ptrdiff_t>(plain.size() - prompt.question.size());
    engine->prefill(fresh, {plain.begin(), plain.begin() + n}, {});
    std::vector<float> want(300);
    engine->prefill(fresh, prompt.question, want);
    const bool reads_densely = entry.slice.empty();
    if (reads_densely) CHECK(max_difference(logits, want) < 1e-4);
    for (uint32_t i = 0; i < 6; ++i) {
      const auto got = decode(*engine, over, token_at(i)),
                 should = decode(*engine, fresh, token_at(i));
      CHECK(largest(got) > 0);
      if (reads_densely) CHECK(max_difference(got, should) < 1e-4);
    }
    CHECK(engine->decode_engagement().fallbacks == 0);
  }
  for (const std::string preset : {"dense", "streaming", "block_topk", "quest"})
    CHECK(blended.contains(preset));
  for (const std::string preset : {"snapkv", "h2o"}) CHECK(refused.contains(preset));
}
