// Speed of a model under strategies, by length of prompt, tokens generated and depth.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/bench/made_up_context.h"
#include "tools/kvasir/bench/timed_model.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

// A strategy with stored types.
struct ModelArm {
  std::string strategy, type_k, type_v;
  StrategyConfig config;
};

// n_prompt tokens read, or n_generate decoded one by one, behind `depth` cached ones; the other is
// 0.
struct ModelTest {
  uint32_t n_prompt = 0, n_generate = 0, depth = 0;
  uint32_t n_tokens() const { return n_prompt + n_generate; }
  std::string name() const;  // "pp512", "tg128", "tg128 @ d32768"
};

// Of one repetition or, the medians of each, of several.
struct ModelParts {  // ms of the whole test
  double projections = 0, choose = 0, attend = 0, ffn = 0, logits = 0, other = 0;
};

struct ModelRow {
  ModelTest test;
  std::string strategy, type_k, type_v;
  std::vector<double> tokens_per_second;  // [repetitions]
  ModelParts parts;
  uint64_t weight_bytes = 0;         // read per token, from main memory
  uint64_t device_weight_bytes = 0;  // likewise, in a device's
  Engagement counted;                // of one repetition
  uint64_t device_bytes_read = 0;    // of what that read, in a device's memory
  double product_seconds = 0;        // in projections and FFN: median of the repetitions
  uint64_t multiply_adds = 0;        // of the layers' matrices, in one repetition

  Typical speed() const;  // tokens/s
  // Of decoded tokens: weights, K, V and what choosing read, of main memory and of a device's. 0
  // where a prompt is read: its tokens share what is read.
  double bytes_per_token() const;
  double device_bytes_per_token() const;
  double bytes_per_second() const;
  double flops() const;  // of a prompt: 2 per multiply-add of the matrices, per second in them
  double attended_share() const;
};

struct ModelReport {
  Setup setup;
  std::string model_name;
  uint64_t file_bytes = 0, n_parameters = 0;
  double load_ms = 0;
  uint32_t n_repetitions = 0;
  uint64_t seed = 0;
  bool breakdown = false;
  MeasuredLimits limits;
  std::vector<ModelRow> rows;  // [arms][tests], as asked for
  bool has_made_up_context() const;
};

Json to_json(const ModelReport& report);
std::string to_text(const ModelReport& report);
extern const char* const kModelColumns;  // what the columns mean, for --help

class ModelBench {
 public:
  // Loads the weights and fills a sequence per arm and depth. Error(kResource) when they do not fit
  // into memory side by side. The session must outlive it.
  ModelBench(Session& session, std::vector<ModelArm> arms, std::vector<ModelTest> tests,
             uint64_t seed);
  // All tests in turn, n times; in each round another one begins.
  std::vector<ModelRow> measure(uint32_t n_repetitions);
  MeasuredLimits limits() const { return meter_->limits(); }

 private:
  struct Sample {
    double seconds = 0;
    TimedModel::Times times;
    Engagement counted;
  };
  StrategyId strategy_of(size_t arm) const { return static_cast<StrategyId>(arm + 1); }
  std::vector<uint32_t> depths() const;  // above 0, ascending
  ProjectionSample read_sample();
  void check_sequences() const;
  void fill();
  Sample run(size_t arm, const ModelTest& test);
  ModelRow row(size_t arm, const ModelTest& test, const std::vector<Sample>& samples) const;

  Session& session_;
  std::vector<ModelArm> arms_;
  std::vector<ModelTest> tests_;
  uint64_t seed_;
  TimedModel* model_ = nullptr;  // the session's
  Engine* engine_ = nullptr;
  std::optional<LimitMeter> meter_;
  std::vector<std::vector<SequenceId>> filled_;  // [depths()][arms]
  std::vector<TokenId> tokens_;                  // random ones, read or decoded
};

}  // namespace kvasir::tool
