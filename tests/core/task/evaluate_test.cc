// Judging answers, the intervals, and the probe that the proofs use, over random weights.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/evaluate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/serving/scheduler.h"
#include "core/task/formats/sample_text.h"
#include "tests/core/runtime/support.h"
#include "tests/core/task/answer_forks.h"
#include "tests/core/task/plugins/needle_probe.h"
#include "tests/core/task/probing.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

using test::Bench;
using test::NeedleProbe;
using test::TokenForward;

// One token per byte: a context of 20, a question of 4, an answer of 3, twice.
Sample toy_sample() {
  Sample sample;
  sample.task = Task::kPasskey;
  sample.tokens.ids = test::some_tokens(35, 4);
  sample.text = std::string(35, 'x');
  for (size_t i = 0; i < 35; ++i) sample.tokens.ends.push_back(i + 1);
  sample.turns = {{{20, 24}, {24, 27}}, {{27, 31}, {31, 34}}};
  return sample;
}

// Makes the answers what greedy decoding gives; written as a user would, feeding back its output.
void answer_greedily(Bench& bench, Sample& sample) {
  const auto engine = bench.engine("[selector]\nplugin = 'kvasir.dense'\n");
  const SequenceId seq = engine->open();
  const std::span<const TokenId> ids(sample.tokens.ids);
  std::vector<float> logits = test::prefill(*engine, seq, ids.first(20));
  for (size_t i = 20; i < 34; ++i) {
    const bool answers = (i >= 24 && i < 27) || i >= 31;
    if (answers) sample.tokens.ids[i] = test::best(logits);
    logits = test::decode(*engine, seq, sample.tokens.ids[i]);
  }
}

// Samples as requests, all at once or one by one.
std::vector<TaskAnswer> answer_all(Engine& engine, const Tokenizer& tokenizer,
                                   const std::vector<Sample>& samples, uint32_t at_once,
                                   bool question_in_prompt = false) {
  Scheduler scheduler(engine, {.max_sequences = at_once});
  std::vector<TaskAnswer> answers(samples.size());
  for (size_t i = 0; i < samples.size(); ++i)
    scheduler.submit(task_request(tokenizer, samples[i], 0, question_in_prompt,
                                  [&answers, i](const TaskAnswer& answer, const RequestStatus& s) {
                                    REQUIRE(s.error_text() == "");
                                    answers[i] = answer;
                                  }));
  scheduler.run();
  return answers;
}
TaskAnswer answer_one(Engine& engine, const Tokenizer& tokenizer, const Sample& sample,
                      bool question_in_prompt = false) {
  return answer_all(engine, tokenizer, {sample}, 1, question_in_prompt)[0];
}

TEST_SUITE_BEGIN("core/task/evaluate");

TEST_CASE("right is what greedy decoding gives, and one other token makes it wrong") {
  Bench bench;
  Sample sample = toy_sample();
  answer_greedily(bench, sample);
  const auto tokenizer = Tokenizer::from_gguf(*bench.tiny.file);
  const auto engine = bench.engine("[selector]\nplugin = 'kvasir.dense'\n");
  for (const bool question_in_prompt : {false, true}) {
    const TaskAnswer answer = answer_one(*engine, *tokenizer, sample, question_in_prompt);
    CHECK(answer.correct);
    CHECK(answer.n_tokens == 6);
    CHECK(answer.n_right == 6);
    CHECK(answer.given.size() == 2);
    REQUIRE(answer.turns.size() == 2);
    for (const TaskAnswer::Turn& turn : answer.turns) CHECK(turn.correct());
    CHECK(answer.given[1] == tokenizer->decode(std::span(sample.tokens.ids).subspan(31, 3), true));
    // The last answer token is never fed: nothing is predicted from it.
    CHECK(engine->decode_engagement().steps == (question_in_prompt ? 9u : 13u));
    engine->reset_engagement();
  }
  for (const size_t at : {24u, 25u, 26u, 31u, 33u}) {
    Sample wrong = sample;
    wrong.tokens.ids[at] = (wrong.tokens.ids[at] + 1) % 300;
    const TaskAnswer answer = answer_one(*engine, *tokenizer, wrong);
    CHECK(!answer.correct);
    CHECK(answer.n_tokens == 6);
    CHECK(answer.n_right < 6);
    // What a later turn is fed is the expected answer, so a wrong one before it changes nothing.
    CHECK(answer.turns[0].correct() == (at > 27));
    CHECK(answer.turns[0].n_tokens + answer.turns[1].n_tokens == 6);
    CHECK(answer.turns[0].n_right + answer.turns[1].n_right == answer.n_right);
  }
}

TEST_CASE("samples answered at once are answered as one by one") {
  Bench bench;
  std::vector<Sample> samples;
  for (uint32_t i = 0; i < 9; ++i) {
    Sample& sample = samples.emplace_back(toy_sample());
    const auto ids = test::some_tokens(35, i + 20);
    std::copy_n(ids.begin(), 20, sample.tokens.ids.begin());
    if (i % 2) answer_greedily(bench, sample);
  }
  const auto tokenizer = Tokenizer::from_gguf(*bench.tiny.file);
  EngineOptions options;
  options.max_sequences = 8;
  options.max_step_tokens = 512 + 7;
  const auto engine = bench.engine("[selector]\nplugin = 'kvasir.dense'\n", options);
  const auto alone = answer_all(*engine, *tokenizer, samples, 1);
  const auto together = answer_all(*engine, *tokenizer, samples, 8);
  for (size_t i = 0; i < samples.size(); ++i) {
    CHECK(alone[i].correct == (i % 2 == 1));
    CHECK(together[i].correct == alone[i].correct);
    CHECK(together[i].n_tokens == alone[i].n_tokens);
    CHECK(together[i].n_right == alone[i].n_right);
    CHECK(together[i].given == alone[i].given);
  }
}

TEST_CASE("a fork answers as its parent would") {
  Bench bench;
  const Sample sample = toy_sample();
  const auto tokenizer = Tokenizer::from_gguf(*bench.tiny.file);
  const auto engine = bench.engine("[selector]\nplugin = 'kvasir.dense'\n");
  const TaskAnswer whole = answer_one(*engine, *tokenizer, sample);
  const test::TaskPrompt prompt = test::prefill_task(*engine, sample);
  for (int i = 0; i < 2; ++i)
    CHECK(test::answer_fork(*engine, *tokenizer, sample, prompt).given == whole.given);
}

TEST_CASE("a sample that asks nothing is refused") {
  Bench bench;
  Sample sample = toy_sample();
  sample.turns.clear();
  const auto engine = bench.engine("[selector]\nplugin = 'kvasir.dense'\n");
  CHECK(test::error_of([&] { test::prefill_task(*engine, sample); }).find("asks nothing") !=
        std::string::npos);
}

// ---- the probe ----

std::vector<uint32_t> best_tokens(const TokenForward& forward, uint32_t layer, uint32_t kv_head,
                                  uint32_t group, uint32_t kv_len, uint32_t forced_begin,
                                  double share) {
  std::vector<double> p(kv_len, 0.0);
  for (uint32_t g = 0; g < group; ++g) {
    std::vector<double> weight(kv_len);
    for (uint32_t t = 0; t < kv_len; ++t) {
      const auto& q = forward.query(kv_head * group + g);
      const auto& k = forward.key(layer, kv_head, t);
      weight[t] = std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) /
                           std::sqrt(static_cast<double>(k.size())));
    }
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (uint32_t t = 0; t < kv_len; ++t) p[t] += weight[t] / total;
  }
  std::vector<uint32_t> order = test::up_to(forced_begin);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return p[a] > p[b]; });
  const auto budget = static_cast<uint32_t>(share * kv_len);
  order.resize(budget - (kv_len - forced_begin));
  for (uint32_t t = forced_begin; t < kv_len; ++t) order.push_back(t);
  return order;
}

constexpr uint32_t kPrompt = 300, kSteps = 4;

TEST_CASE("the probe attends to exactly the best tokens, and reports their mass") {
  Bench bench;
  const auto tokens = test::some_tokens(kPrompt + kSteps, 9);
  const auto engine = bench.engine(test::kProbeStrategy);
  NeedleProbe& probe = test::needle_probe(*engine);
  probe.mode = NeedleProbe::Mode::kTopK;
  probe.share = 0.2;
  probe.watch_begin = 30;
  probe.watch_end = 90;
  const SequenceId seq = engine->open();
  test::prefill(*engine, seq, std::span(tokens).first(kPrompt));
  TokenForward forward(bench.tiny);
  const auto all = [](uint32_t, uint32_t pos, uint32_t) { return test::everything(pos); };
  for (uint32_t i = 0; i < kPrompt; ++i) forward.step(tokens[i], all);
  for (uint32_t i = kPrompt; i < kPrompt + kSteps; ++i) {
    const auto choose = [&](uint32_t layer, uint32_t pos, uint32_t q_head) {
      std::vector<TokenForward::Key> keys;
      for (const uint32_t t : best_tokens(forward, layer, q_head / 4, 4, pos + 1, pos, probe.share))
        keys.push_back({t});
      return keys;
    };
    const auto expected = forward.step(tokens[i], choose);
    const auto logits = test::decode(*engine, seq, tokens[i]);
    CHECK(test::max_difference(logits, expected) < 1e-4 * test::largest(expected));
    for (uint32_t layer = 0; layer < 3; ++layer)
      for (uint32_t head = 0; head < 8; ++head) {
        double mass = 0;
        for (const auto& [token, p] : forward.mass(layer, head))
          if (token >= 30 && token < 90) mass += p;
        CHECK(probe.mass[layer][head] == doctest::Approx(mass).epsilon(1e-3));
      }
  }
}

TEST_CASE("masked tokens are not seen, and no others are lost") {
  Bench bench;
  const auto tokens = test::some_tokens(kPrompt + 1, 10);
  const auto engine = bench.engine(test::kProbeStrategy);
  NeedleProbe& probe = test::needle_probe(*engine);
  probe.mode = NeedleProbe::Mode::kMask;
  probe.masked = {{40, 55}, {100, 101}};
  probe.watch_begin = 40;
  probe.watch_end = 55;
  const SequenceId seq = engine->open();
  test::prefill(*engine, seq, std::span(tokens).first(kPrompt));
  TokenForward forward(bench.tiny);
  const auto all = [](uint32_t, uint32_t pos, uint32_t) { return test::everything(pos); };
  for (uint32_t i = 0; i < kPrompt; ++i) forward.step(tokens[i], all);
  const auto others = [](uint32_t, uint32_t pos, uint32_t) {
    std::vector<TokenForward::Key> keys;
    for (uint32_t t = 0; t <= pos; ++t)
      if ((t < 40 || t >= 55) && t != 100) keys.push_back({t});
    return keys;
  };
  const auto expected = forward.step(tokens[kPrompt], others);
  CHECK(test::max_difference(test::decode(*engine, seq, tokens[kPrompt]), expected) <
        1e-4 * test::largest(expected));
  for (const auto& layer : probe.mass)
    for (const double mass : layer) CHECK(mass == 0.0);
}

// Drives a writer with answers that are prescribed: per turn, the tokens that the model prefers.
struct Writing {
  std::unique_ptr<Tokenizer> tokenizer = test::small_vocabulary();
  PieceEncoder encoder{*tokenizer};
  Sample sample;
  std::vector<TokenId> fed;

  explicit Writing(Grading grading) {
    SampleText text;
    text.task = "made";
    text.context = "The context.";
    text.turns = {{"\nfirst?", " 12", {"12"}}, {"\nsecond?", " 34", {"34"}}};
    text.grading = std::move(grading);
    sample = tokenised(text, 0, encoder);
  }

  TaskAnswer write(const std::vector<std::string>& turns, bool question_in_prompt = false) {
    fed.clear();
    AnswerWriter writer(*tokenizer, sample, prompt_tokens(sample, question_in_prompt));
    std::vector<float> logits(tokenizer->vocab_size());
    size_t turn = 0, said = 0;
    const auto ids_of = [&](size_t t) { return encoder.encode_parts({turns[t]}).ids; };
    for (;;) {
      // What is preferred while a question is fed changes nothing.
      const std::vector<TokenId> ids = ids_of(std::min(turn, turns.size() - 1));
      std::fill(logits.begin(), logits.end(), 0.0f);
      const TokenId best = said < ids.size() ? ids[said] : tokenizer->eos();
      logits[static_cast<size_t>(best)] = 1;
      const size_t before = writer.answer().n_tokens, turns_before = writer.answer().scores.size();
      const auto token = writer.next(logits);
      said += writer.answer().n_tokens - before;
      if (writer.answer().scores.size() != turns_before) {
        ++turn;
        said = 0;
      }
      if (!token) return writer.answer();
      fed.push_back(*token);
    }
  }
};

TEST_CASE("a written answer ends at a stop text, at the end of the text, or at its limit") {
  Writing w({Scorer::kExact, 6, {"\n"}});
  TaskAnswer answer = w.write({" 12\nmore", " 34"});
  CHECK(answer.given == std::vector<std::string>{" 12", " 34"});
  CHECK(answer.correct);
  CHECK(answer.score == 1);
  answer = w.write({" 12345678", " 34"});
  CHECK(answer.given[0] == " 12345");  // six tokens of one byte
  CHECK(!answer.correct);
  CHECK(answer.scores == std::vector<double>{0, 1});
  CHECK(answer.score == 0.5);
}

TEST_CASE("what was written stays in the context of the next question, not what was expected") {
  Writing w({Scorer::kExact, 6, {"\n"}});
  const TaskAnswer answer = w.write({" 99", " 34"});
  CHECK(answer.scores == std::vector<double>{0, 1});
  CHECK(w.tokenizer->decode(w.fed) == "\nfirst? 99\nsecond? 34");
  w.write({" 123456", " 34"}, true);
  CHECK(w.tokenizer->decode(w.fed) == " 12345\nsecond? 34");  // cut by its limit, all of it is fed
}

TEST_CASE("the tokens that a sample is said to need are enough") {
  Writing w({Scorer::kExact, 6, {}});
  w.write({" 999999999", " 999999999"});
  const uint32_t prompt = static_cast<uint32_t>(prompt_tokens(w.sample));
  CHECK(prompt + w.fed.size() <= context_tokens(w.sample, Judging::kText));
  CHECK(context_tokens(w.sample, Judging::kTokens) == w.sample.tokens.ids.size());
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
