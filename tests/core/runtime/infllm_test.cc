// InfLLM's shape of attention: keys stored before RoPE, selection slice by slice in prefill, one
// softmax over a near part at true positions and a far part at a constant distance
// (arXiv:2402.04617), against that sentence restated in double precision.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8, kSink = 8, kWindow = 24, kTopK = 3, kSlice = 16, kPrompt = 150;

std::string toml(const std::string& representative, uint32_t chunk) {
  return "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 24\nchunk_size = " +
         std::to_string(chunk) +
         "\n[selector]\nplugin = 'kvasir.test.infllm'\ntopk = 3\nslice = 16\n[representative]\n"
         "plugin = '" +
         representative + "'\n" + kRecording;
}

// What the blocks of one slice were, per layer and kv head; bypassed: everything, true positions.
struct Chosen {
  bool bypassed = true;
  uint32_t window_begin = 0;
  std::vector<uint32_t> blocks;
};
using History = std::vector<std::vector<std::vector<Chosen>>>;  // [layer][kv head][position]

// Reads the recorded runs in order; checks what a selection of kTopK candidates must be.
void read(recording& book, uint64_t seq, History& history) {
  for (uint32_t i = 0; i < book.n_runs; ++i) {
    const recorded_run& run = book.runs[i];
    for (uint32_t head = 0; head < 2; ++head) {
      Chosen chosen;
      uint32_t n_q = 0, kv_len = 0, parts = 0;
      std::vector<uint32_t> far;
      for (uint32_t r = 0; r < run.n_rows; ++r) {
        const recorded_row& row = run.rows[r];
        if (row.seq != seq || row.kv_head != head) continue;
        ++parts;
        n_q = row.n_q, kv_len = row.kv_len;
        if (row.dist_min == kWindow) far.assign(row.token, row.token + row.n_tokens);
      }
      const uint32_t first = kv_len - n_q + 1;  // tokens the first query sees
      chosen.window_begin = first > kWindow ? (first - kWindow) / kBlock * kBlock : 0;
      const uint32_t candidates =
          chosen.window_begin > kSink ? (chosen.window_begin - kSink) / kBlock : 0;
      chosen.bypassed = candidates <= kTopK;
      CHECK(parts == (chosen.bypassed ? 1 : 2));
      CHECK(n_q <= kSlice);
      for (const uint32_t t : far)
        if (t >= kSink && t < chosen.window_begin && t % kBlock == 0)
          chosen.blocks.push_back(t / kBlock);
      if (!chosen.bypassed) CHECK(chosen.blocks.size() == kTopK);
      for (uint32_t q = 0; q < n_q; ++q) history[run.layer][head].push_back(chosen);
    }
  }
  book.clear(book.self);
}

std::vector<TokenForward::Key> keys_of(const Chosen& chosen, uint32_t pos) {
  if (chosen.bypassed) return everything(pos);
  std::vector<TokenForward::Key> keys;
  for (uint32_t t = 0; t <= pos; ++t) {
    const bool near = pos - t < kWindow;
    const bool window = t >= chosen.window_begin;
    const bool picked =
        std::find(chosen.blocks.begin(), chosen.blocks.end(), t / kBlock) != chosen.blocks.end();
    if (window || t < kSink || picked) keys.push_back({t, 0.0, !near});
  }
  return keys;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/infllm");

TEST_CASE("near at true positions, far at one distance, slice by slice") {
  for (const char* representative : {"kvasir.mean", "kvasir.test.infllm_rep"})
    for (const uint32_t chunk : {64u, 40u}) {
      if (few_cases() && chunk != 40) continue;
      CAPTURE(std::string(representative));
      CAPTURE(chunk);
      Bench bench(8, 2);
      const auto engine = bench.engine(toml(representative, chunk));
      recording& book = recording_of(*engine);
      book.armed = 1;
      const auto prompt = some_tokens(kPrompt, 8);
      const auto seq = engine->open();
      std::vector<std::vector<float>> got;
      Engine::PrefillHooks hooks;
      hooks.all_logits = [&](uint32_t, uint32_t n, const float* logits) {
        for (uint32_t i = 0; i < n; ++i)
          got.emplace_back(logits + size_t{i} * 300, logits + size_t{i + 1} * 300);
      };
      REQUIRE(engine->prefill(seq, prompt, {}, hooks) == kPrompt);
      for (TokenId token = 0; token < 12; ++token) got.push_back(decode(*engine, seq, token));
      History history(3, std::vector<std::vector<Chosen>>(2));
      read(book, seq, history);
      REQUIRE(history[2][1].size() == kPrompt + 12);
      TokenForward forward(bench.tiny, engine->pipeline().selectors[0]->limits().pos_const);
      uint32_t selective = 0;
      for (uint32_t pos = 0; pos < kPrompt + 12; ++pos) {
        CAPTURE(pos);
        const TokenId token = pos < kPrompt ? prompt[pos] : static_cast<TokenId>(pos - kPrompt);
        const auto want = forward.step(token, [&](uint32_t layer, uint32_t p, uint32_t h) {
          return keys_of(history[layer][h / 4][p], p);
        });
        CHECK(max_difference(got[pos], want) < 1e-4);
        selective += !history[0][0][pos].bypassed;
      }
      CHECK(selective > kPrompt / 2);
      CHECK(engine->decode_engagement().fallbacks == 0);
      CHECK(engine->prefill_engagement().fallbacks == 0);
      const Selector& selector = *engine->pipeline().selectors[0];
      CHECK(probe(selector, seq, 0, 0) > 0);
      CHECK(probe(selector, seq, 0, 2) <= kSlice);
      if (std::string(representative) == "kvasir.test.infllm_rep") {
        const Representative& records = *engine->pipeline().representative;
        CHECK(probe(records, seq, 0, 0) > 0);  // mass came
        // Blocks that left the window: of 162 tokens, those below the block of token 138.
        CHECK(probe(records, seq, 0, 1) == 3 * ((kPrompt + 12 - kWindow) / kBlock));
        CHECK(probe(records, seq, 0, 2) == 0);  // none was scored without a record
      }
    }
}

TEST_CASE("the mean of unrotated keys selects what the mean of the slice's queries says") {
  Bench bench(8, 2);
  const auto engine = bench.engine(toml("kvasir.mean", 64));
  recording& book = recording_of(*engine);
  const auto prompt = some_tokens(kPrompt, 8);
  const auto seq = engine->open();
  prefill(*engine, seq, prompt);
  book.armed = 1;
  decode(*engine, seq, 42);
  History history(3, std::vector<std::vector<Chosen>>(2));
  REQUIRE(book.n_runs == 3);
  read(book, seq, history);
  // Layer 0 depends on the embeddings alone: its keys and queries need no earlier attention.
  TokenForward forward(bench.tiny, engine->pipeline().selectors[0]->limits().pos_const);
  for (const TokenId token : prompt)
    forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
  std::vector<std::vector<double>> score(2, std::vector<double>(kPrompt / kBlock));
  forward.step(42, [&](uint32_t layer, uint32_t p, uint32_t h) {
    if (layer == 0)
      for (uint32_t block = 0; block < kPrompt / kBlock; ++block)
        for (uint32_t t = block * kBlock; t < (block + 1) * kBlock; ++t)
          for (uint32_t d = 0; d < 16; ++d)
            score[h / 4][block] +=
                forward.constant_query(h)[d] * forward.raw_key(0, h / 4, t)[d] / kBlock;
    return everything(p);
  });
  for (uint32_t head = 0; head < 2; ++head) {
    const Chosen& chosen = history[0][head][0];
    std::vector<uint32_t> order = between(kSink / kBlock, chosen.window_begin / kBlock);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return score[head][a] > score[head][b]; });
    order.resize(kTopK);
    std::sort(order.begin(), order.end());
    CHECK(chosen.blocks == order);
  }
}
