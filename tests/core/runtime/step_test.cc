// One step of several items: what each may ask, what becomes of it when something fails, and what
// strategies of one engine share.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nchunk_size = 16\nsink_tokens = 4\nwindow_tokens = 8\n";
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
constexpr uint32_t kVocab = 300;

EngineOptions options(uint32_t max_context = 2000) {
  EngineOptions made;
  made.max_context = max_context;
  made.max_sequences = 4;
  made.max_step_tokens = 64;
  return made;
}

struct Asked {
  SequenceId seq;
  std::vector<TokenId> tokens;
};

// One step; logits of the last token of each item.
struct Stepped {
  std::vector<ItemResult> results;
  Logits logits;
};
Stepped step(Engine& engine, const std::vector<Asked>& asked) {
  Stepped out;
  out.logits.assign(asked.size(), std::vector<float>(kVocab));
  std::vector<StepItem> items;
  for (size_t i = 0; i < asked.size(); ++i)
    items.push_back({.seq = asked[i].seq, .tokens = asked[i].tokens, .logits = out.logits[i]});
  out.results = engine.step(items);
  return out;
}
bool has(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

// Three sequences that have read 30 tokens each, the first of id 1.
std::vector<SequenceId> three(Engine& engine) {
  std::vector<SequenceId> out;
  for (uint32_t i = 0; i < 3; ++i) {
    out.push_back(engine.open());
    prefill(engine, out.back(), some_tokens(30, i + 1));
  }
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/step");

TEST_CASE("a prompt may be paused, taken up again, or ended half-way") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kDense, options());
  const auto prompt = some_tokens(50, 7);
  const auto piece = [&](uint32_t begin, uint32_t end) {
    return std::vector<TokenId>(prompt.begin() + begin, prompt.begin() + end);
  };
  const SequenceId paused = engine->open(), other = engine->open();
  prefill(*engine, other, some_tokens(9, 2));
  engine->begin_prompt(paused, 50);
  CHECK(engine->prompt_left(paused) == 50);
  step(*engine, {{paused, piece(0, 21)}});
  for (TokenId token = 0; token < 5; ++token) step(*engine, {{other, {token}}});
  CHECK(engine->prompt_left(paused) == 29);
  CHECK_THROWS_AS(engine->begin_prompt(paused, 3), Error);
  CHECK_THROWS_AS(engine->save(paused), Error);
  const SequenceId half = engine->fork(paused);
  const auto whole = step(*engine, {{paused, piece(21, 50)}, {other, {8}}});
  CHECK(engine->prompt_left(paused) == 0);
  const SequenceId alone = engine->open();
  CHECK(max_difference(whole.logits[0], prefill(*engine, alone, prompt)) == 0);
  engine->end_prompt(half);
  CHECK(engine->prompt_left(half) == 0);
  const SequenceId first = engine->open();
  prefill(*engine, first, std::span(prompt).first(21));
  CHECK(max_difference(decode(*engine, half, 5), decode(*engine, first, 5)) == 0);
}

TEST_CASE("an item that asks for what cannot be had changes nothing, and the others go on") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kDense, options(31));
  const auto seqs = three(*engine);
  decode(*engine, seqs[0], 1);  // its context is full
  const SequenceId reads = engine->open();
  engine->begin_prompt(reads, 2);
  const auto out =
      step(*engine, {{seqs[0], {1}}, {seqs[1], {4}}, {seqs[2], {300}}, {reads, {1, 2, 3}}});
  CHECK(has(out.results[0].text(), "context of 31 tokens is full"));
  CHECK(out.results[1].text().empty());
  CHECK(has(out.results[2].text(), "token id 300 is outside the vocabulary of 300 tokens"));
  CHECK(has(out.results[3].text(), "its prompt has 2 tokens left, 3 were given"));
  for (const ItemResult& result : out.results) CHECK(!result.is_lost);
  CHECK(engine->kv_len(seqs[2]) == 30);
  CHECK(step(*engine, {{seqs[2], {7}}}).results[0].text().empty());
  CHECK_THROWS_AS(engine->begin_prompt(seqs[0], 1), Error);
  CHECK_THROWS_AS(step(*engine, {{reads, {1}}, {reads, {2}}}), Error);
  CHECK_THROWS_AS(step(*engine, {{77, {1}}}), Error);
}

TEST_CASE("a selector's fault ends the sequences it concerns, when the strategy says fail") {
  Bench bench(8, 2);
  const auto engine =
      bench.engine(kCache + "on_fault = 'fail'\n[selector]\nplugin = 'kvasir.test.bad_selector'\n" +
                       "fault = 'error'\nwhere = 'select'\nseq = 2\n",
                   options());
  const auto honest =
      bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.bad_selector'\n", options());
  const auto seqs = three(*engine), same = three(*honest);
  REQUIRE(seqs[1] == 2);
  const auto got = step(*engine, {{seqs[0], {5}}, {seqs[1], {6}}, {seqs[2], {7}}});
  const auto want = step(*honest, {{same[0], {5}}, {same[1], {6}}, {same[2], {7}}});
  CHECK(has(got.results[1].text(), "kvasir.test.bad_selector"));
  CHECK(has(got.results[1].text(), "broken on request"));
  CHECK(got.results[1].is_lost);
  for (const size_t i : {size_t{0}, size_t{2}}) {
    CHECK(got.results[i].text().empty());
    CHECK(max_difference(got.logits[i], want.logits[i]) == 0);
  }
  CHECK(step(*engine, {{seqs[1], {1}}}).results[0].is_lost);  // it can only be closed
  CHECK_THROWS_AS(engine->fork(seqs[1]), Error);
  engine->close(seqs[1]);
  CHECK(step(*engine, {{seqs[0], {5}}, {seqs[2], {7}}}).results[0].text().empty());
}

TEST_CASE("else only their step is dense: the choice of the others stands") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.bad_selector'\n" +
                                       "fault = 'error'\nwhere = 'select'\nseq = 2\n",
                                   options());
  const auto seqs = three(*engine);
  step(*engine, {{seqs[0], {5}}, {seqs[1], {6}}, {seqs[2], {7}}});
  CHECK(engine->decode_engagement().fallbacks == 3);  // one sequence, three layers
}

TEST_CASE("a backend's fault ends the sequence whose attention fails") {
  Bench bench(8, 2);
  const std::string toml = kCache + kDense + "[attention]\nplugin = 'kvasir.test.bad_attention'\n";
  const auto engine = bench.engine(toml + "fault = 'error'\nseq = 2\nfrom_call = 15\n", options());
  const auto honest = bench.engine(toml, options());
  // Five runs each: a prompt's first piece needs none in the last layer.
  const auto seqs = three(*engine), same = three(*honest);
  const auto got = step(*engine, {{seqs[0], {5}}, {seqs[1], {6}}, {seqs[2], {7}}});
  const auto want = step(*honest, {{same[0], {5}}, {same[1], {6}}, {same[2], {7}}});
  CHECK(has(got.results[1].text(), "kvasir.test.bad_attention"));
  CHECK(got.results[1].is_lost);
  for (const size_t i : {size_t{0}, size_t{2}})
    CHECK(max_difference(got.logits[i], want.logits[i]) == 0);
}

TEST_CASE("a storage without space ends the sequence that needed it") {
  Bench bench(8, 2);
  // Four blocks of each prompt in three layers, 36; then each sequence opens one per layer.
  const auto engine = bench.engine(
      kCache + kDense + "[storage]\nplugin = 'kvasir.test.bad_storage'\nfault = 'full'\n" +
          "most_blocks = 44\n",
      options());
  std::vector<SequenceId> seqs;
  for (uint32_t i = 0; i < 3; ++i) {
    seqs.push_back(engine->open());
    prefill(*engine, seqs.back(), some_tokens(32, i + 1));
  }
  const auto out = step(*engine, {{seqs[0], {5}}, {seqs[1], {6}}, {seqs[2], {7}}});
  CHECK(out.results[0].text().empty());
  CHECK(out.results[1].text().empty());
  CHECK(has(out.results[2].text(), "full on request"));
  CHECK(out.results[2].is_lost);
  CHECK(engine->kv_len(seqs[0]) == 33);
  for (const SequenceId seq : seqs) engine->close(seq);
  CHECK(probe(*engine->pipeline().storage, 0) == 0);
  CHECK(probe(*engine->pipeline().storage, 1) == 0);
}

TEST_CASE("strategies of one engine share storage and backend, and are each as alone") {
  Bench bench(8, 2);
  const std::string strategies[] = {kDense, "[selector]\nplugin = 'kvasir.streaming'\n",
                                    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 8\n"
                                    "[representative]\nplugin = 'kvasir.minmax'\n"};
  const auto engine = bench.engine(bench.strategy(kCache + strategies[0]), options());
  for (size_t i = 1; i < 3; ++i)
    CHECK(engine->add_strategy(bench.pipeline(bench.strategy(kCache + strategies[i]))) == i);
  std::vector<Asked> asked;
  for (StrategyId id = 0; id < 3; ++id) {
    CHECK(engine->pipeline(id).storage == engine->pipeline(0).storage);
    CHECK(engine->pipeline(id).attention == engine->pipeline(0).attention);
    const SequenceId seq = engine->open(id);
    prefill(*engine, seq, some_tokens(60, 5));
    asked.push_back({seq, {11}});
  }
  const auto mixed = step(*engine, asked);
  for (size_t i = 0; i < 3; ++i) {
    const auto alone = bench.engine(kCache + strategies[i], options());
    const SequenceId seq = alone->open();
    prefill(*alone, seq, some_tokens(60, 5));
    CHECK(max_difference(mixed.logits[i], decode(*alone, seq, 11)) == 0);
    CHECK(engine->decode_engagement(static_cast<StrategyId>(i)).steps == 1);
    CHECK(engine->decode_engagement(static_cast<StrategyId>(i)).tokens_attended ==
          alone->decode_engagement().tokens_attended);
  }
  const StrategyId other =
      engine->add_strategy(bench.pipeline(bench.strategy("[cache]\nblock_size = 16\n" + kDense)));
  CHECK(engine->pipeline(other).storage != engine->pipeline(0).storage);
}

TEST_CASE("a mixed step makes no more plugin calls than a step of one kind") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache +
                                       "[selector]\nplugin = 'kvasir.block_topk'\n"
                                       "budget_tokens = 8\n"
                                       "[representative]\nplugin = 'kvasir.minmax'\n",
                                   options());
  const auto seqs = three(*engine);
  const SequenceId reads = engine->open();
  engine->begin_prompt(reads, 40);
  engine->reset_engagement();
  step(*engine, {{seqs[0], {5}}, {reads, some_tokens(20)}, {seqs[1], {6}}, {seqs[2], {7}}});
  const uint64_t calls =
      engine->prefill_engagement().boundary_calls + engine->decode_engagement().boundary_calls;
  CHECK(calls <= 8 * 3);
  CHECK(engine->prefill_engagement().steps == 1);
  CHECK(engine->decode_engagement().steps == 1);
}
