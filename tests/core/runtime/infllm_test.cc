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
         "\n[selector]\nplugin = 'kvasir.infllm'\ntopk = 3\nexc_block_size = 16\n[representative]\n"
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
void read(Recording& book, uint64_t seq, History& history, bool bypass = true) {
  for (uint32_t i = 0; i < book.runs.size(); ++i) {
    const RecordedRun& run = book.runs[i];
    for (uint32_t head = 0; head < 2; ++head) {
      Chosen chosen;
      uint32_t n_q = 0, kv_len = 0, parts = 0;
      std::vector<uint32_t> far;
      for (const RecordedRange& range : run.ranges) {
        if (range.seq != seq || range.kv_head != head) continue;
        ++parts;
        n_q = range.n_q, kv_len = range.kv_len;
        if (range.dist_min == kWindow) far = range.token;
      }
      const uint32_t first = kv_len - n_q + 1;  // tokens the first query sees
      chosen.window_begin = first > kWindow ? (first - kWindow) / kBlock * kBlock : 0;
      const uint32_t candidates =
          chosen.window_begin > kSink ? (chosen.window_begin - kSink) / kBlock : 0;
      chosen.bypassed = bypass && candidates <= kTopK;
      CHECK(parts == (chosen.bypassed ? 1 : 2));
      CHECK(n_q <= kSlice);
      for (const uint32_t t : far)
        if (t >= kSink && t < chosen.window_begin && t % kBlock == 0)
          chosen.blocks.push_back(t / kBlock);
      if (!chosen.bypassed) CHECK(chosen.blocks.size() == std::min(kTopK, candidates));
      for (uint32_t q = 0; q < n_q; ++q) history[run.layer][head].push_back(chosen);
    }
  }
  book.runs.clear();
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
  for (const char* representative : {"kvasir.mean", "kvasir.dynamic"})
    for (const uint32_t chunk : {64u, 40u}) {
      if (few_cases() && chunk != 40) continue;
      CAPTURE(std::string(representative));
      CAPTURE(chunk);
      Bench bench(8, 2);
      const auto engine = bench.engine(toml(representative, chunk));
      Recording& book = recording_of(*engine);
      book.armed = 1;
      const auto prompt = some_tokens(kPrompt, 8);
      const auto seq = engine->open();
      Logits got;
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
      CHECK(engine->prefill_engagement().selections > 0);
    }
}

TEST_CASE("the mean of unrotated keys selects what the mean of the slice's queries says") {
  Bench bench(8, 2);
  const auto engine = bench.engine(toml("kvasir.mean", 64));
  Recording& book = recording_of(*engine);
  const auto prompt = some_tokens(kPrompt, 8);
  const auto seq = engine->open();
  prefill(*engine, seq, prompt);
  book.armed = 1;
  decode(*engine, seq, 42);
  History history(3, std::vector<std::vector<Chosen>>(2));
  REQUIRE(book.runs.size() == 3);
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

namespace {

// What the definition of InfLLM needs of a whole run: queries turned to the constant position and
// attention probabilities, by [layer][q_head][position].
struct Seen {
  std::vector<std::vector<std::vector<std::vector<double>>>> query;
  std::vector<std::vector<std::vector<TokenForward::Mass>>> mass;
  Seen() : query(3, decltype(query)::value_type(8)), mass(3, decltype(mass)::value_type(8)) {}
};

// Per query head the mean of the 4 keys of a block that were attended to most while they were in
// the window.
std::vector<double> representative(const Seen& seen, const TokenForward& forward,
                                   const std::vector<Chosen>& chosen, uint32_t layer, uint32_t h,
                                   uint32_t block) {
  std::vector<double> sums(kBlock), mean(16);
  for (size_t pos = 0; pos < chosen.size(); ++pos) {
    if (chosen[pos].window_begin > block * kBlock) break;
    for (const auto& [t, p] : seen.mass[layer][h][pos])
      if (t / kBlock == block) sums[t % kBlock] += p;
  }
  auto order = up_to(kBlock);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sums[a] > sums[b]; });
  for (uint32_t i = 0; i < 4; ++i)
    for (uint32_t d = 0; d < 16; ++d)
      mean[d] += forward.raw_key(layer, h / 4, block * kBlock + order[i])[d] / 4;
  return mean;
}

}  // namespace

TEST_CASE("every slice and token chooses by representative tokens of local attention") {
  for (const uint32_t chunk : {64u, 40u})
    for (const bool bypass : {true, false}) {
      if (few_cases() && bypass != (chunk == 64)) continue;
      CAPTURE(chunk);
      CAPTURE(bypass);
      constexpr uint32_t kSteps = 20;
      Bench bench(8, 2);
      const auto engine = bench.engine(
          "[cache]\nblock_size = 8\nn_init = 8\nn_local = 24\nhead_select_mode = 'shared'\n"
          "bypass = " +
          std::string(bypass ? "true" : "false") + "\nchunk_size = " + std::to_string(chunk) +
          "\n[selector]\nplugin = 'kvasir.infllm'\ntopk = 3\nexc_block_size = 16\n"
          "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\nrepr_topk = 4\n"
          "combine = 'mean'\ndtype = 'f32'\n" +
          kRecording);
      Recording& book = recording_of(*engine);
      book.armed = 1;
      const auto prompt = some_tokens(kPrompt, 8);
      const auto seq = engine->open();
      prefill(*engine, seq, prompt);
      for (TokenId token = 0; token < TokenId{kSteps}; ++token) decode(*engine, seq, token);
      History history(3, std::vector<std::vector<Chosen>>(2));
      read(book, seq, history, bypass);
      REQUIRE(engine->pipeline().selectors[0]->limits().pos_const == kWindow - 1);
      TokenForward forward(bench.tiny, kWindow - 1);
      Seen seen;
      for (uint32_t pos = 0; pos < kPrompt + kSteps; ++pos) {
        const TokenId token = pos < kPrompt ? prompt[pos] : static_cast<TokenId>(pos - kPrompt);
        forward.step(token, [&](uint32_t layer, uint32_t p, uint32_t h) {
          seen.query[layer][h].push_back(forward.constant_query(h));
          return keys_of(history[layer][h / 4][p], p);
        });
        for (uint32_t layer = 0; layer < 3; ++layer)
          for (uint32_t h = 0; h < 8; ++h) seen.mass[layer][h].push_back(forward.mass(layer, h));
      }
      uint32_t checked = 0, newest = 0;
      for (uint32_t layer = 0; layer < 3; ++layer)
        for (uint32_t pos = 0, n = 0; pos < kPrompt + kSteps; pos += n) {
          n = pos >= kPrompt ? 1 : std::min({kSlice, chunk - pos % chunk, kPrompt - pos});
          const auto& chosen = history[layer][0];
          CHECK(history[layer][1][pos].blocks == chosen[pos].blocks);
          const uint32_t first = kSink / kBlock, end = chosen[pos].window_begin / kBlock;
          if (end < first + kTopK + 1) continue;
          std::vector<double> score(end);
          for (uint32_t h = 0; h < 8; ++h)
            for (uint32_t block = first; block < end; ++block) {
              const auto key = representative(seen, forward, chosen, layer, h, block);
              for (uint32_t i = 0; i < n; ++i)
                for (uint32_t d = 0; d < 16; ++d)
                  score[block] += seen.query[layer][h][pos + i][d] * key[d] / n;
            }
          auto order = between(first, end);
          std::sort(order.begin(), order.end(),
                    [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
          CHECK(score[order[kTopK - 1]] - score[order[kTopK]] > 1e-7);  // no tie
          order.resize(kTopK);
          std::sort(order.begin(), order.end());
          CAPTURE(layer);
          CAPTURE(pos);
          CHECK(chosen[pos].blocks == order);
          ++checked;
          newest += order.back() + 1 == end;  // chosen in the first step it could be
        }
      CHECK(checked > 3 * kSteps);
      CHECK(newest > 0);
    }
}
