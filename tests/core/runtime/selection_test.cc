// What block_topk selects through the whole loop is exactly what an oracle, written from the
// published definitions alone, selects from the same queries and keys.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/selection_oracle.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

struct TopKCase {
  uint32_t n_kv_heads;  // of 8 query heads
  OracleRepresentative representative;
  OracleReduce reduce;
  bool shared;
  uint32_t block, sink, window, budget;
  uint32_t n_fixed = 1;
  bool fixed_max = false;
};

std::string toml_of(const TopKCase& s) {
  const char* const names[] = {"mean", "max", "minmax", "fixed"};
  const char* const reduces[] = {"sum", "mean", "max", "softmax_sum"};
  std::string text = "[cache]\nblock_size = " + std::to_string(s.block) +
                     "\nsink_tokens = " + std::to_string(s.sink) +
                     "\nwindow_tokens = " + std::to_string(s.window) + "\ngqa_reduce = '" +
                     reduces[static_cast<int>(s.reduce)] + "'\nhead_select_mode = '" +
                     (s.shared ? "shared" : "separate") + "'\nchunk_size = 33\n";
  text += "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = " + std::to_string(s.budget) +
          "\n[representative]\nplugin = 'kvasir." + names[static_cast<int>(s.representative)] +
          "'\ndtype = 'f32'\n";
  if (s.representative == OracleRepresentative::kFixed)
    text += "representative_num = " + std::to_string(s.n_fixed) + "\ncombine = '" +
            (s.fixed_max ? "max" : "sum") + "'\n";
  return text + kRecording;
}

SelectionCase case_of(const TopKCase& s, const RecordedRun& run) {
  SelectionCase of;
  of.n_q_heads = 8, of.n_kv_heads = s.n_kv_heads, of.head_dim = 16;
  of.block_size = s.block, of.sink_tokens = s.sink, of.window_tokens = s.window;
  of.kv_len = run.ranges[0].kv_len;
  of.budget_tokens = s.budget;
  of.representative = s.representative;
  of.n_fixed = s.n_fixed, of.fixed_max = s.fixed_max;
  of.reduce = s.reduce;
  of.heads = s.shared ? OracleHeads::kShared : OracleHeads::kKvHead;
  of.softmax_scale = 0.25;
  of.k.assign(run.k[0].begin(), run.k[0].end());
  of.q.assign(run.q.begin(), run.q.begin() + 8 * 16);
  return of;
}

struct Tally {
  uint32_t compared = 0, ties = 0, sparse = 0;
};

// Checks every layer of the one step that was recorded, and forgets it.
void check_step(const TopKCase& s, Recording& book, uint64_t seq, Tally& tally) {
  REQUIRE(book.runs.size() == 3);
  for (uint32_t i = 0; i < book.runs.size(); ++i) {
    const RecordedRun& run = book.runs[i];
    const SelectionCase of = case_of(s, run);
    const SelectionAnswer answer = select_blocks(of);
    if (answer.margin < 1e-5) {  // two blocks as good as each other in f32
      ++tally.ties;
      continue;
    }
    ++tally.compared;
    tally.sparse += !answer.everything;
    for (uint32_t head = 0; head < s.n_kv_heads; ++head) {
      CAPTURE(of.kv_len);
      CAPTURE(run.layer);
      CAPTURE(head);
      CHECK(attended(run, seq, head) == tokens_of(of, answer.attended[head]));
    }
  }
  book.runs.clear();
}

void check_setting(const TopKCase& s, uint32_t longest = 1022) {
  const std::string toml = toml_of(s);
  CAPTURE(toml);
  Bench bench(8, s.n_kv_heads);
  const auto engine = bench.engine(toml);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  const auto tokens = some_tokens(1200, s.block + s.window);
  Tally tally;
  uint32_t at = 1;
  prefill(*engine, seq, {tokens.data(), 1});
  const auto one_by_one = [&](uint32_t n) {
    book.armed = 2;
    for (uint32_t i = 0; i < n; ++i) {
      decode(*engine, seq, tokens[at++]);
      check_step(s, book, seq, tally);
    }
    book.armed = 0;
  };
  one_by_one(70);  // from the first token on: no candidates, then few
  for (const uint32_t length : {255u, 510u, 1022u}) {
    if (length > longest || (few_cases() && length > 510)) break;
    prefill(*engine, seq, {tokens.data() + at, length - at});
    at = length;
    one_by_one(5);
  }
  CHECK(tally.ties * 20 <= tally.compared);
  CHECK(tally.sparse > tally.compared / 20);
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/selection");

TEST_CASE("representatives and block sizes, window 0 included") {
  using R = OracleRepresentative;
  for (const R r : {R::kMean, R::kMax, R::kMinMax, R::kFixed}) {
    check_setting({2, r, OracleReduce::kSum, false, 16, 4, 20, 48, 4});
    if (few_cases() && r != R::kFixed) continue;
    check_setting({2, r, OracleReduce::kSum, false, 3, 0, 0, 9, 3, true});
  }
  check_setting({2, R::kFixed, OracleReduce::kSum, false, 32, 4, 64, 96, 8, true});
  check_setting({2, R::kMinMax, OracleReduce::kSum, false, 1, 4, 5, 7});
  check_setting({2, R::kMean, OracleReduce::kSum, false, 64, 65, 1, 130});
}

TEST_CASE("groups and ways to reduce them, shared and separate") {
  using R = OracleReduce;
  for (const uint32_t n_kv_heads : {8u, 2u, 1u}) {
    if (few_cases() && n_kv_heads != 2) continue;
    for (const bool shared : {false, true})
      for (const R reduce : {R::kSum, R::kMean, R::kMax, R::kSoftmaxSum}) {
        const auto representative =
            shared ? OracleRepresentative::kMean : OracleRepresentative::kMinMax;
        check_setting({n_kv_heads, representative, reduce, shared, 8, 4, 9, 16},
                      reduce == R::kSoftmaxSum ? 1022 : 255);
      }
  }
}

TEST_CASE("each sequence of a batch is served from its own query") {
  const TopKCase s{2, OracleRepresentative::kMinMax, OracleReduce::kSum, false, 8, 4, 9, 16};
  Bench bench(8, 2);
  EngineOptions options;
  options.max_sequences = 3;
  const auto engine = bench.engine(toml_of(s), options);
  Recording& book = recording_of(*engine);
  std::vector<SequenceId> ids;
  for (const uint32_t n : {5u, 200u, 90u}) {  // the first is covered by the budget
    ids.push_back(engine->open());
    prefill(*engine, ids.back(), some_tokens(n, n));
  }
  book.armed = 2;
  const Engine::DecodeItem items[] = {{ids[0], 3}, {ids[1], 4}, {ids[2], 5}};
  std::vector<float> logits(900);
  engine->decode(items, logits);
  REQUIRE(book.runs.size() == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    const RecordedRun& run = book.runs[i];
    for (uint32_t r = 0; r < 3; ++r) {
      SelectionCase of = case_of(s, run);
      for (const RecordedRange& range : run.ranges)
        if (range.seq == ids[r]) of.kv_len = range.kv_len;
      of.k.assign(run.k[r].begin(), run.k[r].end());
      of.q.assign(run.q.begin() + r * 128, run.q.begin() + (r + 1) * 128);
      const SelectionAnswer answer = select_blocks(of);
      REQUIRE(answer.margin > 1e-5);
      CHECK(answer.everything == (r == 0));
      for (uint32_t head = 0; head < 2; ++head)
        CHECK(attended(run, ids[r], head) == tokens_of(of, answer.attended[head]));
    }
  }
}
