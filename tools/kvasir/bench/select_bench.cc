// See select_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/select_bench.h"

#include <algorithm>

#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

constexpr int kLimitSamples = 5;

double ms(uint64_t before, uint64_t after) { return static_cast<double>(after - before) / 1e6; }

// What is read to choose is keys, or what was made of them. How wide its elements are, only the
// plugins know: they are taken as wide as those of stored K and V, and as two bytes at the least.
// Where that is too wide the floor is too low, and still a floor.
double element_bytes(const Engagement& decode, const kvasir_geometry& geometry) {
  const auto rows = static_cast<double>(decode.tokens_attended + decode.sliding_tokens);
  const double elements = rows * (geometry.head_dim + geometry.v_dim);
  return std::max(2.0, elements > 0 ? static_cast<double>(decode.kv_bytes_read) / elements : 0.0);
}

}  // namespace

double SelectRow::attended_percent() const {
  return 100.0 * static_cast<double>(decode.tokens_attended) /
         std::max(1.0, static_cast<double>(decode.tokens_considered));
}

bool SelectRow::attends_everything() const {
  return decode.tokens_attended == decode.tokens_considered;
}

SelectBench::SelectBench(Session& session, const std::vector<Arm>& arms, uint32_t max_depth,
                         uint32_t n_steps)
    : n_steps_(n_steps),
      engine_(session.load(max_depth + n_steps, static_cast<uint32_t>(arms.size() + 1))),
      scheduler_(engine_, {.memory_bytes = session.sequence_memory()}),
      labels_{"dense"} {
  for (const Arm& arm : arms) {
    engine_.add_strategy(session.pipeline(arm.strategy));
    labels_.push_back(arm.label);
  }
  LimitMeter meter(session.pool());
  for (int i = 0; i < kLimitSamples; ++i) meter.sample();
  limits_ = meter.limits();
}

std::vector<SelectRow> SelectBench::measure(std::span<const TokenId> prompt) {
  const auto depth = static_cast<uint32_t>(prompt.size());
  engine_.reset_engagement();
  const std::vector<ReadPrompt> prompts = read(prompt);
  const std::vector<Series> series = decode(prompts, format("%u tokens: decode", depth));
  std::vector<SelectRow> rows;
  for (StrategyId strategy = 0; strategy < labels_.size(); ++strategy) {
    rows.push_back(row(depth, strategy, series[strategy]));
    rows.back().of_dense = rows.back().step / rows[0].step;
    for (uint32_t step = 0; step < n_steps_; ++step)
      rows.back().n_faster += series[strategy].step[step] < series[0].step[step];
    scheduler_.close(prompts[strategy].seq);
  }
  return rows;
}

std::vector<ReadPrompt> SelectBench::read(std::span<const TokenId> prompt) {
  const std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  std::vector<ReadPrompt> prompts(labels_.size());
  for (const auto& group : prompt_groups(engine_, static_cast<uint32_t>(labels_.size()))) {
    const std::string label =
        format("%zu tokens: %s: prefill", tokens.size(), labels_[group[0]].c_str());
    std::vector<ReadPrompt> read = read_prompt(scheduler_, group, tokens, n_steps_, label);
    for (size_t i = 0; i < group.size(); ++i) prompts[group[i]] = std::move(read[i]);
  }
  return prompts;
}

// In each round another strategy begins: none always follows the one that swept the cache.
std::vector<SelectBench::Series> SelectBench::decode(const std::vector<ReadPrompt>& prompts,
                                                     const std::string& label) {
  ProgressBar bar(label);
  const auto n = static_cast<uint32_t>(labels_.size());
  std::vector<Series> series(n);
  std::vector<float> dense = prompts[0].logits, others(dense.size());
  for (uint32_t round = 0; round < n_steps_; ++round) {
    const auto token =
        static_cast<TokenId>(std::max_element(dense.begin(), dense.end()) - dense.begin());
    for (uint32_t turn = 0; turn < n; ++turn) {
      const StrategyId strategy = (round + turn) % n;
      const Engine::DecodeItem item{prompts[strategy].seq, token};
      const Engagement before = engine_.decode_engagement(strategy);
      engine_.decode({&item, 1}, strategy == 0 ? dense : others);
      series[strategy].add(before, engine_.decode_engagement(strategy));
      stop_if_interrupted();
    }
    bar.update(round + 1, n_steps_);
  }
  return series;
}

void SelectBench::Series::add(const Engagement& before, const Engagement& after) {
  step.push_back(ms(before.total_nanos, after.total_nanos));
  choose.push_back(ms(before.choose_nanos, after.choose_nanos));
  attend.push_back(ms(before.attend_nanos, after.attend_nanos));
  model.push_back(ms(before.model_nanos, after.model_nanos));
  other.push_back(std::max(0.0, step.back() - choose.back() - attend.back() - model.back()));
}

SelectRow SelectBench::row(uint32_t depth, StrategyId strategy, const Series& series) const {
  const uint32_t period = engine_.pipeline(strategy).strategy.cache.token_step.value;
  const auto middle = [&](const std::vector<double>& steps) {
    return typical(steps, period).middle;
  };
  SelectRow out;
  out.depth = depth;
  out.strategy = labels_[strategy];
  out.step = middle(series.step);
  out.spread = typical(series.step, period).spread;
  out.choose = middle(series.choose);
  out.attend = middle(series.attend);
  out.model = middle(series.model);
  out.other = middle(series.other);
  out.decode = engine_.decode_engagement(strategy);
  const kvasir_geometry& geometry = engine_.geometry(strategy);
  StepWork work;
  work.bytes_to_choose = static_cast<double>(out.decode.bytes_read_to_choose()) / n_steps_;
  work.kv_bytes = static_cast<double>(out.decode.kv_bytes_read) / n_steps_;
  work.element_bytes = element_bytes(out.decode, geometry);
  work.group_size = geometry.n_q_heads / geometry.n_kv_heads;
  out.floors = step_floors(work, limits_.read_bandwidth.middle, limits_.multiply_add_rate.middle);
  return out;
}

}  // namespace kvasir::tool
