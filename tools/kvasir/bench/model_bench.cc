// See model_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/model_bench.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "core/error.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/given_prompt.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/session/shared_prompt.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kSampleTokens = 128;
constexpr uint32_t kWarmUpTokens = 8;

double ms(uint64_t nanos) { return static_cast<double>(nanos) / 1e6; }

std::vector<TokenId> random_tokens(const Model& model, uint32_t n, uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<TokenId> out;
  while (out.size() < n) {
    const auto id = static_cast<TokenId>(bits() % model.shape().vocab_size);
    if (model.has_token(id)) out.push_back(id);
  }
  return out;
}

template <class Value>
double median_of(const std::vector<Value>& samples, const auto& part) {
  std::vector<double> values;
  for (const Value& sample : samples) values.push_back(part(sample));
  return typical(values, 1).middle;
}

}  // namespace

std::string ModelTest::name() const {
  const std::string what = n_prompt ? format("pp%u", n_prompt) : format("tg%u", n_generate);
  return depth ? what + format(" @ d%u", depth) : what;
}

Typical ModelRow::speed() const { return typical(tokens_per_second, 1); }

double ModelRow::bytes_per_token() const {
  if (test.n_generate == 0) return 0;
  const auto read = static_cast<double>(counted.kv_bytes_read + counted.bytes_read_to_choose() -
                                        device_bytes_read);
  return static_cast<double>(weight_bytes) + read / test.n_generate;
}

double ModelRow::device_bytes_per_token() const {
  if (test.n_generate == 0) return 0;
  return static_cast<double>(device_weight_bytes) +
         static_cast<double>(device_bytes_read) / test.n_generate;
}

double ModelRow::bytes_per_second() const { return bytes_per_token() * speed().middle; }

double ModelRow::flops() const {
  if (test.n_prompt == 0 || product_seconds <= 0) return 0;
  return 2.0 * static_cast<double>(multiply_adds) / product_seconds;
}

double ModelRow::attended_share() const {
  return static_cast<double>(counted.tokens_attended) /
         std::max(1.0, static_cast<double>(counted.tokens_considered));
}

ModelBench::ModelBench(Session& session, std::vector<ModelArm> arms, std::vector<ModelTest> tests,
                       uint64_t seed)
    : session_(session), arms_(std::move(arms)), tests_(std::move(tests)), seed_(seed) {
  uint32_t context = kSampleTokens, n_tokens = 0;
  for (const ModelTest& test : tests_) {
    context = std::max(context, test.depth + test.n_tokens());
    n_tokens = std::max(n_tokens, test.n_tokens());
  }
  session.wrap_model([this](std::unique_ptr<Model> model) {
    auto timed = std::make_unique<TimedModel>(std::move(model));
    model_ = timed.get();
    return timed;
  });
  session.hold_at_most(kSampleTokens);  // dense, in a type that nobody asked for
  engine_ = &session.load(context);
  tokens_ = random_tokens(*model_, n_tokens, seed);
  for (const ModelArm& arm : arms_) engine_->add_strategy(session.pipeline(arm.config));
  check_sequences();
  fill();
  meter_.emplace(session.pool());
}

std::vector<uint32_t> ModelBench::depths() const {
  std::vector<uint32_t> out;
  for (const ModelTest& test : tests_)
    if (test.depth) out.push_back(test.depth);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Strategies that share K and V are counted as sharing them, each with what a test adds.
void ModelBench::check_sequences() const {
  const auto groups = prompt_groups(*engine_, static_cast<uint32_t>(arms_.size() + 1));
  const auto added = static_cast<uint32_t>(tokens_.size());
  MemoryBytes bytes;
  for (const uint32_t depth : depths())
    for (const auto& group : groups) {
      bool leads = true;
      for (const StrategyId strategy : group) {
        if (strategy == 0) continue;  // the session's own, which is not measured
        bytes += engine_->sequence_bytes(strategy, depth, leads ? 0 : depth);
        leads = false;
      }
    }
  for (size_t arm = 0; arm < arms_.size(); ++arm)
    bytes += engine_->sequence_bytes(strategy_of(arm), added);
  const std::string lacking = lacking_text(bytes, session_.sequence_memory());
  if (lacking.empty()) return;
  throw Error(ErrorKind::kResource,
              "the contexts of all depths and strategies need " + lacking +
                  " are left: give fewer or smaller depths in -d, fewer strategies, or -ctk and "
                  "-ctv of a smaller type");
}

// What the model itself projects of random tokens.
ProjectionSample ModelBench::read_sample() {
  ProjectionSample out;
  const ModelShape& s = model_->shape();
  out.n_tokens = kSampleTokens;
  out.q.resize(s.n_layers);
  out.k.resize(s.n_layers);
  out.v.resize(s.n_layers);
  model_->on_project = [&](uint32_t layer, uint32_t n, const float* q, const float* k,
                           const float* v) {
    out.q[layer].insert(out.q[layer].end(), q, q + size_t{n} * s.n_q_heads * s.head_dim);
    out.k[layer].insert(out.k[layer].end(), k, k + size_t{n} * s.n_kv_heads * s.head_dim);
    out.v[layer].insert(out.v[layer].end(), v, v + size_t{n} * s.n_kv_heads * s.v_head_dim);
  };
  const SequenceId seq = engine_->open();
  engine_->prefill(seq, random_tokens(*model_, kSampleTokens, ~seed_), {});
  engine_->close(seq);
  model_->on_project = nullptr;
  return out;
}

void ModelBench::fill() {
  const std::vector<uint32_t> all = depths();
  if (all.empty()) return;
  const GivenProjections projections =
      made_up_projections(read_sample(), model_->shape(), seed_, session_.pool());
  const auto groups = prompt_groups(*engine_, static_cast<uint32_t>(arms_.size() + 1));
  for (const uint32_t depth : all) {
    std::vector<SequenceId>& of_arm = filled_.emplace_back(arms_.size());
    for (const auto& group : groups) {
      std::vector<SequenceId> seqs;
      for (const StrategyId strategy : group)
        if (strategy != 0) seqs.push_back(of_arm[strategy - 1] = engine_->open(strategy));
      if (seqs.empty()) continue;
      ProgressBar bar(format("making up %u tokens", depth));
      give_prompt(*engine_, seqs, depth, projections, GivenTo::kFew, [&](uint32_t done) {
        bar.update(done, depth);
        stop_if_interrupted();
      });
    }
  }
}

ModelBench::Sample ModelBench::run(size_t arm, const ModelTest& test) {
  const std::vector<uint32_t> all = depths();
  const auto at = static_cast<size_t>(std::find(all.begin(), all.end(), test.depth) - all.begin());
  const SequenceId seq =
      test.depth ? engine_->fork(filled_[at][arm]) : engine_->open(strategy_of(arm));
  std::vector<float> logits(model_->shape().vocab_size);
  engine_->reset_engagement();
  model_->reset_times();
  const auto start = std::chrono::steady_clock::now();
  if (test.n_prompt) engine_->prefill(seq, std::span(tokens_).first(test.n_prompt), logits);
  for (uint32_t i = 0; i < test.n_generate; ++i) {
    const Engine::DecodeItem item{seq, tokens_[i]};
    engine_->decode({&item, 1}, logits);
  }
  Sample out;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  out.times = model_->times();
  out.counted = test.n_prompt ? engine_->prefill_engagement(strategy_of(arm))
                              : engine_->decode_engagement(strategy_of(arm));
  engine_->close(seq);
  stop_if_interrupted();
  return out;
}

std::vector<ModelRow> ModelBench::measure(uint32_t n_repetitions) {
  const size_t n = arms_.size() * tests_.size();
  std::vector<std::vector<Sample>> samples(n);
  // Pages touched, weights and tables in their caches: a prompt's first step touches all of a
  // step's.
  for (size_t i = 0; i < n; ++i) {
    ModelTest test = tests_[i % tests_.size()];
    test.n_prompt = std::min(test.n_prompt, engine_->max_step_tokens());
    test.n_generate = std::min(test.n_generate, kWarmUpTokens);
    run(i / tests_.size(), test);
  }
  ProgressBar bar("bench");
  for (uint32_t round = 0; round < n_repetitions; ++round)
    for (size_t turn = 0; turn < n; ++turn) {
      const size_t i = (round + turn) % n;
      meter_->sample();
      samples[i].push_back(run(i / tests_.size(), tests_[i % tests_.size()]));
      bar.update(round * n + turn + 1, n_repetitions * n);
    }
  std::vector<ModelRow> rows;
  for (size_t i = 0; i < n; ++i)
    rows.push_back(row(i / tests_.size(), tests_[i % tests_.size()], samples[i]));
  return rows;
}

ModelRow ModelBench::row(size_t arm, const ModelTest& test,
                         const std::vector<Sample>& samples) const {
  const auto middle = [&](const auto& part) { return median_of(samples, part); };
  ModelRow out;
  out.test = test;
  out.strategy = arms_[arm].strategy;
  out.type_k = arms_[arm].type_k;
  out.type_v = arms_[arm].type_v;
  for (const Sample& s : samples) out.tokens_per_second.push_back(test.n_tokens() / s.seconds);
  out.parts.projections = middle([](const Sample& s) { return ms(s.times.projections); });
  out.parts.ffn = middle([](const Sample& s) { return ms(s.times.ffn); });
  out.parts.logits = middle([](const Sample& s) { return ms(s.times.logits); });
  out.parts.choose = middle([](const Sample& s) { return ms(s.counted.choose_nanos); });
  out.parts.attend = middle([](const Sample& s) { return ms(s.counted.attend_nanos); });
  out.parts.other = middle([](const Sample& s) {
    const double known =
        ms(s.times.products() + s.times.logits + s.counted.choose_nanos + s.counted.attend_nanos);
    return std::max(0.0, 1e3 * s.seconds - known);
  });
  out.product_seconds =
      middle([](const Sample& s) { return static_cast<double>(s.times.products()) / 1e9; });
  out.weight_bytes = model_->weight_bytes_per_token();
  out.device_weight_bytes = model_->placement().weight_bytes;
  out.multiply_adds = samples.back().times.multiply_adds;
  out.counted = samples.back().counted;
  out.device_bytes_read = engine_->device_bytes_read(strategy_of(arm), out.counted);
  return out;
}

}  // namespace kvasir::tool
