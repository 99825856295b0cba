// See recall_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_bench.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/model/synthetic/prescribed_model.h"
#include "core/runtime/engine.h"
#include "core/runtime/plan.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/given_prompt.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

RecallMeter::Choice choice_of(const Engine& engine) {
  const CacheConfig& cache = engine.pipeline().strategy.cache;
  const SelectorLimits& limits = engine.pipeline().selectors.back()->limits();
  RecallMeter::Choice choice;
  choice.unit_tokens = limits.unit == KVASIR_UNIT_TOKEN ? 1 : cache.block_size.value;
  if (limits.scope == KVASIR_SCOPE_SEQUENCE ||
      cache.head_select_mode.value == HeadSelectMode::kShared)
    choice.scope = RecallScope::kSequence;
  else if (limits.scope == KVASIR_SCOPE_Q_HEAD)
    choice.scope = RecallScope::kQHead;
  return choice;
}

}  // namespace

RecallBench::RecallBench(const RecallWorld& world, uint32_t budget, uint64_t seed, PluginHost& host,
                         std::string remedy)
    : world_(world),
      shape_(world.shape()),
      budget_(budget),
      seed_(seed),
      host_(host),
      remedy_(std::move(remedy)),
      truth_(world_, budget, host.pool(), stop_if_interrupted) {}

double RecallBench::target() const {
  const double all = shape_.context + (1.0 + shape_.steps) / 2.0;
  return std::min(all, 0.0 + shape_.sink + shape_.window + budget_);
}

double RecallBench::tolerance(const RecallMeter::Choice& choice) const {
  return std::max(0.0 + choice.unit_tokens, 0.02 * target());
}

RecallResult RecallBench::run(const StrategyConfig& strategy,
                              const std::function<void()>& between) const {
  std::optional<RecallMeter> meter;
  RecallResult out;
  if (keeps_choices_) out.choices = RecallChoices(shape_);
  std::optional<uint32_t> decoded;  // the step at hand; none: the prompt
  const PrescribedModel model(
      world_.geometry(),
      [&](uint32_t layer, int32_t token, float* q, float* k, float* v) {
        world_.project(layer, token, q, k, v);
      },
      [&](uint32_t layer, std::span<const int32_t> tokens, const float* output) {
        meter->output(layer, static_cast<uint32_t>(tokens.back()),
                      output + (tokens.size() - 1) * shape_.n_q_heads * shape_.head_dim);
      });
  EngineOptions options;
  options.max_context = shape_.context + shape_.steps;
  options.seed = seed_;
  options.on_attend = [&](uint32_t layer, uint64_t, uint32_t head,
                          std::span<const uint32_t> tokens) {
    meter->attended(layer, head, tokens);
    if (keeps_choices_ && decoded)
      out.choices.at(layer, *decoded, head).assign(tokens.begin(), tokens.end());
  };
  Pipeline planned = build_pipeline(strategy, host_.registry(), host_.services());
  check_memory(make_plan(model.shape(), {}, planned, options, 0).total(),
               "-s " + strategy.name + " over " + std::to_string(options.max_context) + " tokens",
               "", remedy_);
  Engine engine(model, build_pipeline(strategy, host_.registry(), host_.services()), host_.pool(),
                host_.services(), options);
  const RecallMeter::Choice choice = choice_of(engine);
  meter.emplace(world_, truth_, choice);
  const SequenceId seq = engine.open();
  give_prompt(engine, {seq}, shape_.context, projections(), GivenTo::kAllAskers,
              [&](uint32_t) { between(); });
  std::vector<float> logits(1);
  for (uint32_t step = 0; step < shape_.steps; ++step) {
    decoded = step;
    const Engine::DecodeItem item{seq, static_cast<TokenId>(shape_.context + step)};
    engine.decode({&item, 1}, logits);
    between();
  }
  out.choice = choice;
  out.figures = meter->figures();
  out.layers = meter->layer_figures();
  out.kv_bytes = engine.kv_bytes(seq);
  out.fallbacks = engine.decode_engagement().fallbacks;
  return out;
}

// No model reads the prompt: its outputs are not looked at, so attention is computed for those
// alone who ask for its mass.
GivenProjections RecallBench::projections() const {
  return [this](uint32_t layer, uint32_t first_pos, uint32_t n, float* q, float* k, float* v) {
    const uint64_t dim = shape_.head_dim;
    host_.pool().parallel_for(n, 0, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin; i < end; ++i)
        world_.project(layer, static_cast<int32_t>(first_pos + i), q + i * shape_.n_q_heads * dim,
                       k + i * shape_.n_kv_heads * dim, v + i * shape_.n_kv_heads * dim);
    });
  };
}

RecallResult RecallBench::measure(const RecallArm& arm, const std::function<void()>& on_run) const {
  std::map<std::vector<double>, RecallResult> runs;
  const auto run_once = [&](const std::vector<double>& values) -> const RecallResult& {
    auto known = runs.find(values);
    if (known == runs.end()) {
      known = runs.emplace(values, run(arm.strategy(values), stop_if_interrupted)).first;
      on_run();
    }
    return known->second;
  };
  const auto attended = [&](const std::vector<double>& values) {
    try {
      return run_once(values).figures.attended;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInput) throw;
      return 0.0;  // the budget is too small for this strategy
    }
  };
  Fit found;
  for (const FitKnob& knob : arm.knobs()) found.values.push_back(knob.start);
  const double near_enough = tolerance(run_once(found.values).choice);
  if (!arm.knobs().empty()) found = fit(arm.knobs(), attended, target(), near_enough);
  RecallResult out = runs.at(found.values);
  out.label = arm.label();
  out.tolerance = near_enough;
  out.at_target = found.reached;
  out.n_runs = runs.size();
  out.note = note(arm, found, out.figures.attended);
  for (size_t i = 0; i < found.values.size(); ++i)
    if (i == 0 || found.values[i] != arm.knobs()[i].start)
      out.settings.emplace_back(arm.key(i), found.values[i]);
  return out;
}

std::string RecallBench::note(const RecallArm& arm, const Fit& found, double attended) const {
  if (arm.knobs().empty()) return "attends to everything";
  std::string changed, tried;
  for (size_t i = 0; i < found.values.size(); ++i) {
    const FitKnob& knob = arm.knobs()[i];
    const char* key = arm.key(i).c_str();
    tried += i == 0 ? format("no %s from %.6g to %.6g", key, knob.low, knob.high)
                    : format(", and no %s short of all or nothing,", key);
    if (found.values[i] != knob.start)
      changed += format("%s%s = %.6g instead of %.6g", changed.empty() ? "" : ", ", key,
                        found.values[i], knob.start);
  }
  if (found.reached) return changed;
  return format("attends to %.0f tokens; %s leads to %.0f. ", attended, tried.c_str(), target()) +
         "Compare it with best and random in its row, which choose as many tokens";
}

}  // namespace kvasir::tool
