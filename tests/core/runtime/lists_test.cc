// Lists per query block in prefill, against attention in double over the keys that the lists name:
// pieces of any size, beside sequences that decode; contributions, attention mass and the layer's
// input come with them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"
#include "tests/plugins/fakes/lists.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 4, kSink = 3, kWindow = 6, kVocab = 300, kLayers = 3, kPrompt = 61;

struct Case {
  uint32_t query_block = 0, dense_last = 0, slice = 0;  // slice 0: the piece
  std::string unit = "block", keep = "some";
  std::vector<uint32_t> pieces = {23, 5, 33};
  std::string fault = "none";
};

std::string strategy(const Case& c) {
  const auto number = [](const char* key, int64_t value) {
    return std::string(key) + " = " + std::to_string(value) + "\n";
  };
  return "[cache]\n" + number("block_size", kBlock) + number("sink_tokens", kSink) +
         number("window_tokens", kWindow) + "chunk_size = 64\n[selector]\n" +
         "plugin = 'kvasir.test.lists'\nunit = '" + c.unit + "'\nkeep = '" + c.keep +
         "'\nfault = '" + c.fault + "'\n" + number("query_block", c.query_block) +
         number("slice", c.slice) +
         number("dense_last", c.dense_last == KVASIR_ALL_QUERIES ? -1 : int64_t{c.dense_last});
}

// First position of the slice a prompt's query is in, and of its query block.
struct Place {
  uint32_t slice, block;
};
Place place_of(const Case& c, uint32_t pos) {
  if (pos >= kPrompt) return {pos, pos};
  uint32_t begin = 0, piece = 0;
  while (begin + c.pieces[piece] <= pos) begin += c.pieces[piece++];
  const uint32_t slice = c.slice ? begin + (pos - begin) / c.slice * c.slice : begin;
  return {slice, c.query_block ? slice + (pos - slice) / c.query_block * c.query_block : slice};
}

// What the lists and the forced parts make a query attend to.
std::vector<uint32_t> attended_by(const Case& c, uint32_t layer, uint32_t pos, uint32_t kv_head) {
  const bool is_prompt = pos < kPrompt;
  if (is_prompt && (c.dense_last >= kPrompt || pos >= kPrompt - c.dense_last))
    return up_to(pos + 1);
  const Place place = place_of(c, pos);
  const uint32_t per = c.unit == "block" ? kBlock : 1;
  const uint32_t n = place.block + 1;
  const uint32_t window = (n > kWindow ? n - kWindow : 0) / per * per;
  const uint32_t sink = std::min(window, (kSink + per - 1) / per * per);
  const uint32_t named_for = c.keep == "one_list" ? place.slice : place.block;
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t <= pos; ++t)
    if (t < sink || t >= window || list_names(layer, kv_head, named_for, t / per)) out.push_back(t);
  return out;
}

// One sequence in double, with what it saw: attention input and mass by position.
struct Oracle {
  Oracle(const TinyModel& tiny, const Case& of, uint32_t group) : forward(tiny), c(of), g(group) {}

  std::vector<float> step(TokenId token) {
    const uint32_t pos = forward.n_tokens();
    x.emplace_back(kLayers);
    const auto out = forward.step(token, [&](uint32_t layer, uint32_t at, uint32_t q_head) {
      x[at][layer] = forward.input();
      std::vector<TokenForward::Key> keys;
      if (c.keep == "contributes") return everything(at);
      for (const uint32_t t : attended_by(c, layer, at, q_head / g)) keys.push_back({t});
      return keys;
    });
    mass.emplace_back();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      mass[pos].emplace_back();
      for (uint32_t h = 0; h < forward_heads; ++h) {
        auto& of_head = mass[pos][layer].emplace_back();
        const auto seen = attended_by(c, layer, pos, h / g);
        for (const auto& [key, p] : forward.mass(layer, h))
          if (std::binary_search(seen.begin(), seen.end(), key)) of_head.emplace_back(key, p);
      }
    }
    return out;
  }

  TokenForward forward;
  const Case& c;
  uint32_t g, forward_heads = 0;
  std::vector<std::vector<std::vector<float>>> x;                  // [pos][layer]
  std::vector<std::vector<std::vector<TokenForward::Mass>>> mass;  // [pos][layer][q_head]
};

void check_calls(Engine& engine, const std::map<SequenceId, Oracle*>& oracles) {
  uint32_t n_observed = 0, n_selected = 0;
  for (const RecordedCall& call : calls_of(engine)) {
    size_t x_at = 0, mass_list = 0;
    for (size_t r = 0; r < call.seq.size(); ++r) {
      const kvasir_step_seq& seq = call.seq[r];
      const Oracle& oracle = *oracles.at(seq.id);
      const uint32_t n_q = call.function == RecordedCall::kSelect ? seq.n_q : call.n_queries[r];
      const uint32_t first = seq.kv_len - n_q;
      double worst = 0;
      for (uint32_t pos = first; call.function == RecordedCall::kSelect && pos < seq.kv_len;
           ++pos) {
        const auto& want = oracle.x[pos][call.layer];
        worst = larger_or_nan(worst,
                              max_difference(std::span(call.x).subspan(x_at, want.size()), want));
        x_at += want.size();
      }
      n_selected += call.function == RecordedCall::kSelect;
      for (uint32_t h = 0; call.function == RecordedCall::kObserve && h < oracle.forward_heads;
           ++h) {
        std::map<uint32_t, double> want;
        for (uint32_t pos = first; pos < seq.kv_len; ++pos)
          for (const auto& [token, p] : oracle.mass[pos][call.layer][h]) want[token] += p;
        for (uint64_t i = call.offsets[mass_list]; i < call.offsets[mass_list + 1]; ++i) {
          worst = larger_or_nan(worst, std::abs(want[call.index[i]] - double{call.value[i]}));
          want.erase(call.index[i]);
        }
        for (const auto& [token, p] : want) worst = larger_or_nan(worst, p);
        ++mass_list;
        ++n_observed;
      }
      CHECK(worst < 2e-3);
    }
    if (call.function == RecordedCall::kObserve) CHECK(call.offsets.size() == mass_list + 1);
  }
  CHECK(n_observed > 0);
  CHECK(n_selected > 0);
}

// A prompt in pieces beside a sequence that decodes, then both decode.
void check_against_oracle(const Case& c, uint32_t n_q_heads, uint32_t n_kv_heads) {
  CAPTURE(c.query_block);
  CAPTURE(c.dense_last);
  CAPTURE(c.slice);
  CAPTURE(c.unit);
  CAPTURE(c.keep);
  CAPTURE(n_kv_heads);
  Bench bench(n_q_heads, n_kv_heads);
  EngineOptions options;
  options.max_sequences = 2;
  options.max_step_tokens = 80;
  const auto engine = bench.engine(strategy(c), options);
  Case beside = c;  // its prompt is one piece
  beside.pieces = {kPrompt};
  Oracle reading(bench.tiny, c, n_q_heads / n_kv_heads),
      decoding(bench.tiny, beside, n_q_heads / n_kv_heads);
  reading.forward_heads = decoding.forward_heads = n_q_heads;
  const SequenceId other = engine->open(), seq = engine->open();
  for (const TokenId token : some_tokens(kPrompt, 5)) decoding.step(token);
  prefill(*engine, other, some_tokens(kPrompt, 5));
  const auto prompt = some_tokens(kPrompt, 9);
  engine->begin_prompt(seq, kPrompt);
  double worst = 0;
  TokenId next = 17;
  uint32_t at = 0;
  for (size_t round = 0; round < c.pieces.size() + 2; ++round) {
    const TokenId decoded[] = {next++};
    std::vector<TokenId> piece = {next++};
    if (round < c.pieces.size())
      piece.assign(prompt.begin() + at, prompt.begin() + at + c.pieces[round]);
    std::vector<float> beside_logits(kVocab);
    const StepItem items[] = {
        {.seq = other, .tokens = decoded, .logits = beside_logits},
        {.seq = seq, .tokens = piece, .all_logits = [&](uint32_t, uint32_t n, const float* logits) {
           for (uint32_t i = 0; i < n; ++i) {
             const auto want = reading.step(piece[reading.forward.n_tokens() - at]);
             worst =
                 larger_or_nan(worst, max_difference({logits + size_t{i} * kVocab, kVocab}, want));
           }
         }}};
    for (const ItemResult& result : engine->step(items)) CHECK(result.text() == "");
    CHECK(reading.forward.n_tokens() == at + piece.size());
    worst = larger_or_nan(worst, max_difference(beside_logits, decoding.step(decoded[0])));
    at += static_cast<uint32_t>(piece.size());
  }
  CHECK(worst < 1e-3);
  CHECK(bench.log.empty());
  CHECK(engine->prefill_engagement().fallbacks + engine->decode_engagement().fallbacks == 0);
  check_calls(*engine, {{seq, &reading}, {other, &decoding}});
}

Logits logits_of(const std::string& toml) {
  Bench bench;
  const auto engine = bench.engine(toml);
  const SequenceId seq = engine->open();
  Logits out{prefill(*engine, seq, some_tokens(kPrompt, 9))};
  for (TokenId token = 3; token < 6; ++token) out.push_back(decode(*engine, seq, token));
  return out;
}

std::string dense() {
  const std::string toml = strategy({});
  return toml.substr(0, toml.find("[selector]")) + "[selector]\nplugin = 'kvasir.dense'\n";
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/lists");

TEST_CASE("each query block attends to what its list names") {
  for (const uint32_t query_block : {0u, 1u, 3u, 16u})
    for (const uint32_t slice : {0u, 14u})
      for (const std::string unit : {"block", "token"})
        for (const uint32_t n_kv_heads : {8u, 2u}) {
          if (few_cases() && (slice == 0) == (unit == "token")) continue;
          Case c;
          c.query_block = query_block, c.slice = slice, c.unit = unit;
          check_against_oracle(c, 8, n_kv_heads);
          c.pieces = {1, 40, 2, 18};
          check_against_oracle(c, 8, n_kv_heads);
        }
}

TEST_CASE("the last queries of a prompt are dense, one list may serve all blocks") {
  for (const uint32_t dense_last : {1u, 17u, 40u, KVASIR_ALL_QUERIES})
    for (const uint32_t query_block : {0u, 3u}) {
      Case c;
      c.dense_last = dense_last, c.query_block = query_block, c.slice = 20, c.unit = "token";
      check_against_oracle(c, 8, 2);
    }
  Case c;
  c.query_block = 5, c.keep = "one_list";
  check_against_oracle(c, 8, 2);
}

TEST_CASE("exact contributions for keys that are not listed give dense attention") {
  for (const uint32_t query_block : {0u, 1u, 3u})
    for (const std::string unit : {"block", "token"}) {
      Case c;
      c.query_block = query_block, c.unit = unit, c.keep = "contributes";
      check_against_oracle(c, 8, 2);
      check_against_oracle(c, 4, 4);
    }
}

TEST_CASE("lists that cover everything are dense attention, bit for bit") {
  const auto want = logits_of(dense());
  for (const char* keep : {"all", "every"})
    for (const uint32_t query_block : {0u, 1u, 3u, 16u})
      for (const std::string unit : {"block", "token"}) {
        CAPTURE(keep);
        CAPTURE(query_block);
        CAPTURE(unit);
        Case c;
        c.query_block = query_block, c.keep = keep, c.unit = unit;
        CHECK(logits_of(strategy(c)) == want);
      }
}

TEST_CASE("what is wrong with lists or a contribution is said, and the step is dense") {
  const auto want = logits_of(dense());
  const std::pair<const char*, const char*> kFaults[] = {
      {"lists_missing", "returned 41 lists, expected 42 (1 sequences x 2 heads x 21 query blocks)"},
      {"other_block", "query_block 4 is neither 0 nor what was preset, 3"},
      {"nan", "contribution of query 0, head 0: lse is NaN or +inf"}};
  for (const auto& [fault, text] : kFaults) {
    CAPTURE(fault);
    Case c;
    c.query_block = 3, c.fault = fault;
    Bench bench;
    const auto engine = bench.engine(strategy(c));
    const auto got = prefill(*engine, engine->open(), some_tokens(kPrompt, 9));
    CHECK(got == want[0]);
    CHECK(engine->prefill_engagement().fallbacks == kLayers);
    REQUIRE(!bench.log.empty());
    CHECK_MESSAGE(bench.log[0].find(text) != std::string::npos, bench.log[0]);
  }
}

TEST_CASE("a selector with lists per query block stands alone") {
  Bench bench;
  Case c;
  c.query_block = 3;
  std::string toml = strategy(c);
  toml.replace(toml.find("[selector]"), 10, "[[selector]]");
  CHECK_THROWS_WITH_AS(bench.engine(toml + "[[selector]]\nplugin = 'kvasir.streaming'\n"),
                       doctest::Contains("must be the only selector"), Error);
}
