// KTransformers' long-context mode through the whole loop: preselection, most attended keys, second
// selection, against those sentences restated in double precision; and SnapKV as a case of it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"
#include "tests/oracles/representative.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8, kSink = 8, kWindow = 24, kPrompt = 150, kQueries = 20, kKeys = 2;
constexpr uint32_t kPreselected = 6, kSelected = 4, kLayers = 3, kHeads = 8;

std::string toml(uint32_t chunk, bool shared) {
  return "[cache]\nblock_size = 8\nsink_tokens = 8\nlocal_windows_len = 24\nhead_select_mode = '" +
         std::string(shared ? "SHARED" : "SEPARATE") + "'\nchunk_size = " + std::to_string(chunk) +
         "\n[[selector]]\nplugin = 'kvasir.preselect'\npreselect_block_count = 6\nwindow_size = "
         "20\n"
         "[[selector]]\nplugin = 'kvasir.block_topk'\nsecond_block_count = 4\n[representative]\n"
         "plugin = 'kvasir.dynamic'\nanchor_num = 2\nlast_queries = 20\ndtype = 'f32'\n" +
         kRecording;
}

// Indices of the n largest, best first; equal ones: the lower index. `margin`: how clear that was.
std::vector<uint32_t> best_of(const std::vector<double>& value, size_t n, double& margin) {
  auto order = up_to(static_cast<uint32_t>(value.size()));
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return value[a] > value[b]; });
  for (size_t i = 0; i < std::min(n, order.size() - 1); ++i)
    margin = std::min(margin, (value[order[i]] - value[order[i + 1]]) /
                                  std::max(1e-30, std::abs(value[order[i]])));
  order.resize(std::min(n, order.size()));
  return order;
}

// The prompt read densely, with what its last queries attended to.
struct Question {
  TokenForward forward;
  std::vector<std::vector<std::vector<double>>> mass;  // [layer][q_head][token]
  std::vector<float> logits;

  Question(const TinyModel& tiny, const std::vector<TokenId>& prompt, uint32_t n_queries)
      : forward(tiny),
        mass(kLayers, std::vector<std::vector<double>>(kHeads, std::vector<double>(1000))) {
    for (uint32_t pos = 0; pos < prompt.size(); ++pos) {
      logits =
          forward.step(prompt[pos], [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
      if (pos + n_queries < prompt.size()) continue;
      for (uint32_t layer = 0; layer < kLayers; ++layer)
        for (uint32_t h = 0; h < kHeads; ++h)
          for (const auto& [t, p] : forward.mass(layer, h)) mass[layer][h][t] += p;
    }
  }
};

struct Oracle {
  Question question;
  uint32_t group;
  bool shared;
  double margin = 1.0;
  std::vector<std::vector<uint32_t>> tables;               // [layer], preselected blocks
  std::vector<std::vector<std::vector<uint32_t>>> chosen;  // [layer][kv head], of the last step

  Oracle(const TinyModel& tiny, uint32_t n_kv_heads, bool for_all,
         const std::vector<TokenId>& prompt)
      : question(tiny, prompt, kQueries), group(kHeads / n_kv_heads), shared(for_all) {
    const uint32_t begin = kSink / kBlock, end = (kPrompt - kWindow) / kBlock;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<double> votes(end - begin);
      for (uint32_t block = begin; block < end; ++block)
        for (uint32_t t = block * kBlock - kBlock / 4; t < (block + 1) * kBlock + kBlock / 4; ++t)
          for (uint32_t h = 0; t < end * kBlock && h < kHeads; ++h)
            votes[block - begin] += question.mass[layer][h][t];
      tables.push_back(best_of(votes, kPreselected, margin));
      for (uint32_t& block : tables.back()) block += begin;
    }
    for (uint32_t layer = 0; layer + 1 < kLayers; ++layer)
      for (uint32_t i = 1; i < std::min(kPreselected, 6u); ++i) {
        auto& table = tables[layer];
        if (std::find(table.begin(), table.end(), tables.back()[i]) == table.end())
          table[kPreselected - i] = tables.back()[i];
      }
    chosen.assign(kLayers, std::vector<std::vector<uint32_t>>(n_kv_heads));
  }

  double score(uint32_t layer, uint32_t h, uint32_t block) {
    TokenForward& forward = question.forward;
    const auto dot = [&](uint32_t t) {
      double sum = 0;
      for (uint32_t d = 0; d < 16; ++d)
        sum += forward.query(h)[d] * forward.key(layer, h / group, t)[d];
      return sum;
    };
    double sum = 0;
    if ((block + 1) * kBlock > kPrompt) {  // filled while answering
      for (uint32_t t = block * kBlock; t < (block + 1) * kBlock; ++t)
        sum += dot(t) * kKeys / kBlock;
      return sum;
    }
    const auto* mass = question.mass[layer][h].data() + block * kBlock;
    for (const uint32_t t : best_of({mass, mass + kBlock}, kKeys, margin))
      sum += dot(block * kBlock + t);
    return sum;
  }

  std::vector<TokenForward::Key> attended(uint32_t layer, uint32_t pos, uint32_t h) {
    const uint32_t kv_head = h / group, window = (pos + 1 - kWindow) / kBlock;
    auto& mine = chosen[layer][kv_head];
    if (h % group == 0) {
      std::vector<uint32_t> reachable = tables[layer];
      for (uint32_t b = (kPrompt - kWindow) / kBlock; b < window; ++b) reachable.push_back(b);
      std::sort(reachable.begin(), reachable.end());
      std::vector<double> scores;
      for (const uint32_t block : reachable) {
        scores.push_back(0);
        for (uint32_t head = shared ? 0 : h; head < (shared ? kHeads : h + group); ++head)
          scores.back() += score(layer, head, block);
      }
      mine = best_of(scores, kSelected, margin);
      for (uint32_t& block : mine) block = reachable[block];
    }
    std::vector<TokenForward::Key> keys;
    for (uint32_t t = 0; t <= pos; ++t)
      if (t < kSink || t / kBlock >= window ||
          std::find(mine.begin(), mine.end(), t / kBlock) != mine.end())
        keys.push_back({t});
    return keys;
  }
};

// One token through a method restated here and through the engine: the same logits, from the same
// tokens attended in every layer and kv head.
template <class Method>
void check_token(Method& method, TokenForward& forward, Engine& engine, SequenceId seq,
                 TokenId token) {
  const uint32_t n_kv_heads = kHeads / method.group;
  std::vector<std::vector<std::vector<uint32_t>>> want(
      kLayers, std::vector<std::vector<uint32_t>>(n_kv_heads));
  const auto logits = forward.step(token, [&](uint32_t layer, uint32_t pos, uint32_t h) {
    const auto keys = method.attended(layer, pos, h);
    auto& tokens = want[layer][h / method.group];
    tokens.clear();
    for (const auto& key : keys) tokens.push_back(key.token);
    return keys;
  });
  Recording& book = recording_of(engine);
  CHECK(max_difference(decode(engine, seq, token), logits) < 1e-4);
  REQUIRE(book.runs.size() == kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    for (uint32_t head = 0; head < n_kv_heads; ++head)
      CHECK(attended(book.runs[layer], seq, head) == want[layer][head]);
  book.runs.clear();
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/ktransformers");

TEST_CASE("preselected, represented by the most attended keys, selected again at every step") {
  for (const uint32_t n_kv_heads : {8u, 2u})
    for (const bool shared : {true, false})
      for (const uint32_t chunk : {9u, 140u, 256u}) {  // the last queries span chunks, or not
        CAPTURE(n_kv_heads);
        CAPTURE(shared);
        CAPTURE(chunk);
        Bench bench(8, n_kv_heads);
        const auto engine = bench.engine(toml(chunk, shared));
        const auto prompt = some_tokens(kPrompt, 4);
        Oracle oracle(bench.tiny, n_kv_heads, shared, prompt);
        const auto seq = engine->open();
        CHECK(max_difference(prefill(*engine, seq, prompt), oracle.question.logits) < 1e-4);
        recording_of(*engine).armed = 1;
        uint32_t generated = 0, restricted = 0;
        for (uint32_t i = 0; i < 60; ++i) {
          CAPTURE(i);
          check_token(oracle, oracle.question.forward, *engine, seq, static_cast<TokenId>(i * 5));
          for (const auto& layer : oracle.chosen)
            for (const auto& head : layer)
              for (const uint32_t block : head) {
                generated += (block + 1) * kBlock > kPrompt;
                restricted += (block + 1) * kBlock <= kPrompt - kWindow;
              }
        }
        CHECK(oracle.margin > 1e-7);  // no tie could excuse another choice
        CHECK(restricted > 0);
        CHECK(generated > 0);
        CHECK(engine->decode_engagement().fallbacks == 0);
      }
}

TEST_CASE("blocks of one token with preselection attend to what SnapKV without pooling keeps") {
  constexpr uint32_t kCapacity = 40;  // the window of 16 counted in
  for (const uint32_t n_kv_heads : {8u, 2u})
    for (const uint32_t chunk : {5u, 256u}) {
      CAPTURE(n_kv_heads);
      CAPTURE(chunk);
      Bench bench(8, n_kv_heads);
      const std::string shared =
          "[cache]\nblock_size = 1\nsink_tokens = 0\nwindow_tokens = 16\nwindow_mode = 'prompt'\n"
          "chunk_size = " +
          std::to_string(chunk) + "\n" + kRecording +
          "[selector]\nmax_capacity_prompt = 40\nwindow_size = 16\n";
      const auto engine =
          bench.engine(shared +
                       "plugin = 'kvasir.preselect'\nhead_select_mode = 'separate'\n"
                       "union_with_last_layer = false\n");
      const auto snapkv =
          bench.engine(shared + "plugin = 'kvasir.snapkv'\nkernel_size = 1\nmode = 'retrieve'\n");
      Recording& book = recording_of(*engine);
      Recording& other = recording_of(*snapkv);
      const auto prompt = some_tokens(kPrompt, 4);
      Question question(bench.tiny, prompt, 16);
      double margin = 1.0;
      const auto seq = engine->open(), twin = snapkv->open();
      prefill(*engine, seq, prompt);
      prefill(*snapkv, twin, prompt);
      book.armed = other.armed = 1;
      for (uint32_t i = 0; i < 12; ++i) {
        decode(*engine, seq, static_cast<TokenId>(i));
        decode(*snapkv, twin, static_cast<TokenId>(i));
        REQUIRE(book.runs.size() == kLayers);
        REQUIRE(other.runs.size() == kLayers);
        for (uint32_t layer = 0; layer < kLayers; ++layer)
          for (uint32_t head = 0; head < n_kv_heads; ++head) {
            std::vector<double> votes(kPrompt - 16);
            const uint32_t group = kHeads / n_kv_heads;
            for (uint32_t h = head * group; h < (head + 1) * group; ++h)
              for (uint32_t t = 0; t < votes.size(); ++t) votes[t] += question.mass[layer][h][t];
            auto kept = best_of(votes, kCapacity - 16, margin);
            for (uint32_t t = kPrompt - 16; t <= kPrompt + i; ++t) kept.push_back(t);
            std::sort(kept.begin(), kept.end());
            CHECK(attended(book.runs[layer], seq, head) == kept);
            CHECK(attended(other.runs[layer], twin, head) == kept);
          }
        book.runs.clear();
        other.runs.clear();
      }
      CHECK(margin > 1e-7);
    }
}

namespace {

// Quest (arXiv:2406.10774): of the full pages between what is forced, the n whose bound
// sum over d of max(q[d] min[d], q[d] max[d]) is largest, summed over the query heads of the group.
struct Quest {
  TokenForward forward;
  uint32_t group, sink, n_pages;
  double margin = 1.0;
  uint32_t n_chosen = 0;
  std::vector<uint32_t> chosen{};  // of the kv head at hand

  std::vector<TokenForward::Key> attended(uint32_t layer, uint32_t pos, uint32_t h) {
    if (layer == 0) return everything(pos);
    const uint32_t window = (pos + 1 - 8) / kBlock, begin = sink / kBlock;
    if (h % group == 0) {
      std::vector<double> scores(window - begin, 0.0);
      for (uint32_t page = begin; page < window; ++page) {
        oracle::Vectors keys;
        for (uint32_t t = page * kBlock; t < (page + 1) * kBlock; ++t)
          keys.push_back(forward.key(layer, h / group, t));
        for (uint32_t head = h; head < h + group; ++head)
          scores[page - begin] += oracle::representative::bound(forward.query(head), keys);
      }
      chosen = best_of(scores, n_pages, margin);
      n_chosen += static_cast<uint32_t>(chosen.size());
      for (uint32_t& page : chosen) page += begin;
    }
    std::vector<TokenForward::Key> keys;
    for (uint32_t t = 0; t <= pos; ++t)
      if (t < sink || t / kBlock >= window ||
          std::find(chosen.begin(), chosen.end(), t / kBlock) != chosen.end())
        keys.push_back({t});
    return keys;
  }
};

}  // namespace

TEST_CASE("QUEST representatives without preselection, per kv head, select what Quest selects") {
  // Quest forces no initial pages; an imported configuration of KTransformers forces 64 tokens.
  for (const uint32_t sink : {0u, 64u})
    for (const uint32_t n_kv_heads : {8u, 2u, 1u}) {
      CAPTURE(sink);
      CAPTURE(n_kv_heads);
      Bench bench(8, n_kv_heads);
      const auto engine =
          bench.engine(kRecording +
                       "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n"
                       "[cache]\nblock_size = 8\nlocal_windows_len = 8\ndense_layer_num = 1\n"
                       "head_select_mode = 'SEPARATE'\nsink_tokens = " +
                       std::to_string(sink) +
                       "\n[selector]\nplugin = 'kvasir.block_topk'\nsecond_block_count = 3\n");
      Quest quest{TokenForward(bench.tiny), 8 / n_kv_heads, sink, 3};
      const auto prompt = some_tokens(kPrompt, 4);
      for (const TokenId token : prompt)
        quest.forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
      const auto seq = engine->open();
      prefill(*engine, seq, prompt);
      recording_of(*engine).armed = 1;
      for (uint32_t i = 0; i < 30; ++i)
        check_token(quest, quest.forward, *engine, seq, static_cast<TokenId>(i));
      CHECK(quest.margin > 2e-6);  // no tie could excuse another choice
      CHECK(quest.n_chosen == 30 * (kLayers - 1) * n_kv_heads * 3);
    }
}
