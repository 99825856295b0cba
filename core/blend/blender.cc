// See blender.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/blender.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "core/blend/deviation.h"
#include "core/error.h"

namespace kvasir {
namespace {

// Adds the time of its life.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Timed(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

// Closes a sequence that nobody has taken.
class Guarded {
 public:
  Guarded(Engine& engine, SequenceId seq) : engine_(engine), seq_(seq) {}
  ~Guarded() {
    if (seq_) engine_.close(*seq_);
  }
  Guarded(const Guarded&) = delete;
  SequenceId get() const { return *seq_; }
  SequenceId take() {
    const SequenceId seq = *seq_;
    seq_.reset();
    return seq;
  }

 private:
  Engine& engine_;
  std::optional<SequenceId> seq_;
};

void call(const std::function<void()>& between) {
  if (between) between();
}

void step(Engine& engine, const StepItem& item) {
  const auto results = engine.step({&item, 1});
  if (results[0].error) std::rethrow_exception(results[0].error);
}

// A prompt, or a further part of one, with `between` between its pieces.
void read(Engine& engine, SequenceId seq, std::span<const TokenId> tokens, std::span<float> logits,
          const std::function<void()>& between) {
  if (tokens.empty()) return;
  const Engine::PrefillHooks hooks{.progress =
                                       [&](uint32_t, uint32_t) {
                                         call(between);
                                         return true;
                                       },
                                   .all_logits = {}};
  engine.prefill(seq, tokens, logits, hooks);
}

}  // namespace

double BlendReport::recomputed_share() const {
  if (chunk_tokens == 0 || recomputed.empty()) return 0;
  const uint64_t sum = std::accumulate(recomputed.begin(), recomputed.end(), uint64_t{0});
  return static_cast<double>(sum) /
         (static_cast<double>(chunk_tokens) * static_cast<double>(recomputed.size()));
}

// Where the parts of a prompt stand.
struct Blender::Layout {
  std::vector<TokenId> context;  // lead and chunks
  uint32_t begin = 0;            // of the chunks
  // The first token that can deviate: behind the first chunk where that stands as it was read.
  uint32_t first_changed = 0;
  uint32_t end() const { return static_cast<uint32_t>(context.size()); }
  uint32_t n_chunk_tokens() const { return end() - begin; }
};

Blender::Blender(Engine& engine, const ModelShape& shape, StrategyId strategy,
                 std::optional<TokenId> bos)
    : engine_(engine),
      shape_(shape),
      strategy_(strategy),
      bos_(bos),
      chunks_(engine, strategy, bos) {}

Blender::Layout Blender::layout(const BlendPrompt& prompt) const {
  Layout out;
  out.context = prompt.lead;
  out.begin = out.first_changed = static_cast<uint32_t>(prompt.lead.size());
  for (const ChunkId chunk : prompt.chunks) {
    const auto tokens = chunks_.tokens(chunk);
    out.context.insert(out.context.end(), tokens.begin(), tokens.end());
  }
  const bool as_read = bos_ ? prompt.lead == std::vector<TokenId>{*bos_} : prompt.lead.empty();
  if (as_read && !prompt.chunks.empty())
    out.first_changed += static_cast<uint32_t>(chunks_.tokens(prompt.chunks[0]).size());
  return out;
}

std::string Blender::cannot_blend(const BlendPrompt& prompt, const BlendConfig& config) const {
  if (prompt.chunks.empty()) return "the prompt has no chunks";
  if (prompt.question.empty())
    return "the question is empty: give at least one token behind chunks";
  if (config.mode == BlendMode::kFull) return "";
  if (const std::string why = engine_.cannot_recompute(strategy_); !why.empty())
    return why + ": chunks cannot be reused, read them as one prompt (mode \"full\")";
  const Layout parts = layout(prompt);
  const RopeConfig& rope = shape_.rope;
  const uint64_t n_tokens = uint64_t{parts.end()} + prompt.question.size();
  if (rope.scaling == RopeScaling::kDynamicNtk && n_tokens > rope.original_context)
    return "the model turns keys by the length of the prompt beyond " +
           std::to_string(rope.original_context) +
           " tokens (dynamic NTK): keys of shorter chunks do not fit";
  if (config.mode == BlendMode::kReuseUncorrected &&
      engine_.geometry(strategy_).k_state != KVASIR_K_ROTATED)
    return "the strategy stores keys before RoPE: they have no positions that could stay "
           "uncorrected";
  if (!has_ratio(config.mode) && config.mode != BlendMode::kAuto) return "";
  if (config.check_layer >= shape_.n_layers)
    return "check_layer = " + std::to_string(config.check_layer) + ", but the model has " +
           std::to_string(shape_.n_layers) + " layers";
  if (parts.end() - parts.first_changed > engine_.max_step_tokens())
    return "blending takes " + std::to_string(parts.end() - parts.first_changed) +
           " tokens of chunks through one step, the engine was made for " +
           std::to_string(engine_.max_step_tokens());
  return "";
}

BlendDecision Blender::decision(const BlendPrompt& prompt, const Layout& parts,
                                const BlendConfig& config) {
  if (config.mode != BlendMode::kAuto) return {config.mode, config.ratio, ""};
  const uint32_t n = parts.n_chunk_tokens();
  BlendTimes times;
  times.compute_layer = chunks_.computing().seconds(n);
  if (n >= config.min_tokens) {  // else nothing is loaded
    std::vector<float> k, v;
    const Timed timed(times.load_layer);
    for (const ChunkId chunk : prompt.chunks) {
      const auto n_tokens = static_cast<uint32_t>(chunks_.tokens(chunk).size());
      k.resize(uint64_t{n_tokens} * shape_.n_kv_heads * shape_.head_dim);
      v.resize(uint64_t{n_tokens} * shape_.n_kv_heads * shape_.v_head_dim);
      chunks_.fetch_kv(chunk, 0, 0, n_tokens, k.data(), v.data());
    }
  }
  return decide(n, times, config);
}

Blended Blender::blend(const BlendPrompt& prompt, const BlendConfig& wanted, uint64_t seed,
                       std::span<float> logits, const std::function<void()>& between) {
  if (const std::string why = cannot_blend(prompt, wanted); !why.empty()) throw input_error(why);
  const Layout parts = layout(prompt);
  const BlendDecision decided = decision(prompt, parts, wanted);
  BlendConfig config = wanted;
  config.mode = decided.mode;
  config.ratio = decided.ratio;
  Blended out;
  if (config.mode == BlendMode::kFull || config.mode == BlendMode::kPrefix) {
    out = read_all(prompt, parts, config.mode == BlendMode::kPrefix, logits, between);
  } else {
    Narrowing::TrueDeviation truth;
    if (config.mode == BlendMode::kOracle) truth = true_deviation(prompt, parts, between);
    BlendReport& report = out.report;
    report.recomputed.assign(shape_.n_layers, 0);
    const auto placed = [&] {
      const Timed timed(report.place_seconds);
      return place(parts, prompt, config.mode, between);
    };
    Guarded seq(engine_, placed());
    call(between);
    if (has_ratio(config.mode) && config.ratio > 0)
      recompute(seq.get(), parts, config, seed, &truth, report);
    {
      const Timed timed(report.question_seconds);
      read(engine_, seq.get(), prompt.question, logits, between);
    }
    out.seq = seq.take();
  }
  out.report.mode = config.mode;
  out.report.ratio = has_ratio(config.mode) ? config.ratio : 0;
  out.report.chunk_tokens = parts.n_chunk_tokens();
  if (!decided.reason.empty()) out.report.reason = decided.reason;
  return out;
}

// A plain prompt, or one behind the first chunk's own sequence.
Blended Blender::read_all(const BlendPrompt& prompt, const Layout& parts, bool reuses_first,
                          std::span<float> logits, const std::function<void()>& between) {
  Blended out;
  const bool forks = reuses_first && parts.first_changed > parts.begin;
  if (reuses_first && !forks)
    out.report.reason =
        "the first chunk was not read behind the tokens that the prompt starts with";
  const auto open = [&] {
    const Timed timed(out.report.place_seconds);
    return forks ? engine_.fork(chunks_.sequence(prompt.chunks[0])) : engine_.open(strategy_);
  };
  Guarded seq(engine_, open());
  const uint32_t read_from = forks ? parts.first_changed : 0;
  {
    const Timed timed(out.report.recompute_seconds);
    read(engine_, seq.get(), std::span(parts.context).subspan(read_from), {}, between);
  }
  {
    const Timed timed(out.report.question_seconds);
    read(engine_, seq.get(), prompt.question, logits, between);
  }
  out.report.recomputed.assign(shape_.n_layers, parts.end() - std::max(read_from, parts.begin));
  out.seq = seq.take();
  return out;
}

SequenceId Blender::place(const BlendPrompt& prompt, BlendMode mode,
                          const std::function<void()>& between) {
  BlendConfig config;
  config.mode = mode;
  if (const std::string why = cannot_blend(prompt, config); !why.empty()) throw input_error(why);
  return place(layout(prompt), prompt, mode, between);
}

SequenceId Blender::place(const Layout& parts, const BlendPrompt& prompt, BlendMode mode,
                          const std::function<void()>& between) {
  Guarded seq(engine_, engine_.open(strategy_));
  engine_.begin_prompt(seq.get(), parts.end());
  for (size_t at = 0; at < prompt.lead.size(); ++at)
    step(engine_, {.seq = seq.get(), .tokens = std::span(prompt.lead).subspan(at, 1)});
  const uint32_t most = std::min(engine_.max_step_tokens(),
                                 engine_.pipeline(strategy_).strategy.cache.chunk_size.value);
  for (const ChunkId chunk : prompt.chunks) {
    const auto n = static_cast<uint32_t>(chunks_.tokens(chunk).size());
    for (uint32_t begin = 0; begin < n; begin += most) {
      call(between);
      place_piece(seq.get(), chunk, begin, std::min(most, n - begin),
                  mode != BlendMode::kReuseUncorrected);
    }
  }
  return seq.take();
}

void Blender::place_piece(SequenceId seq, ChunkId chunk, uint32_t begin, uint32_t n, bool turns) {
  const auto to = static_cast<int64_t>(engine_.kv_len(seq));
  const int64_t from = int64_t{chunks_.first_position()} + begin;
  const std::vector<int32_t> turn(n, turns ? static_cast<int32_t>(to - from) : 0);
  // Nobody asks for the queries: strategies that would are refused.
  const uint64_t q_width = uint64_t{shape_.n_q_heads} * shape_.head_dim;
  step(engine_, {.seq = seq,
                 .tokens = chunks_.tokens(chunk).subspan(begin, n),
                 .given =
                     [&](uint32_t layer, uint32_t, uint32_t, float* q, float* k, float* v) {
                       std::fill_n(q, n * q_width, 0.0f);
                       chunks_.fetch_kv(chunk, layer, begin, n, k, v);
                     },
                 .given_turn = turn});
}

void Blender::recompute(SequenceId seq, const Layout& parts, const BlendConfig& config,
                        uint64_t seed, const Narrowing::TrueDeviation* truth, BlendReport& report) {
  const Timed timed(report.recompute_seconds);
  std::vector<uint32_t> positions(parts.end() - parts.first_changed);
  if (positions.empty()) return;
  std::iota(positions.begin(), positions.end(), parts.first_changed);
  Narrowing narrowing(config.mode,
                      narrowing_schedule(shape_.n_layers, parts.n_chunk_tokens(),
                                         static_cast<uint32_t>(positions.size()), config),
                      config.check_layer, seed, truth, shape_.n_kv_heads * shape_.head_dim,
                      shape_.n_kv_heads * shape_.v_head_dim);
  step(engine_, {.seq = seq, .recompute = positions, .narrow = [&](const RecomputedLayer& layer) {
                   return narrowing(layer);
                 }});
  report.recomputed = narrowing.kept();
}

Narrowing::TrueDeviation Blender::true_deviation(const BlendPrompt& prompt, const Layout& parts,
                                                 const std::function<void()>& between) {
  const Guarded reused(engine_, place(parts, prompt, BlendMode::kReuse, between));
  const Guarded full(engine_, engine_.open(strategy_));
  read(engine_, full.get(), parts.context, {}, between);
  Narrowing::TrueDeviation truth{parts.begin, deviations(prompt, reused.get(), full.get())};
  for (size_t layer = truth.of_layer.size() - 1; layer-- > 0;)
    std::transform(truth.of_layer[layer].begin(), truth.of_layer[layer].end(),
                   truth.of_layer[layer + 1].begin(), truth.of_layer[layer].begin(), std::plus<>());
  return truth;
}

std::vector<std::vector<double>> Blender::deviations(const BlendPrompt& prompt, SequenceId reused,
                                                     SequenceId full) {
  const Layout parts = layout(prompt);
  std::vector<uint32_t> positions(parts.n_chunk_tokens());
  std::iota(positions.begin(), positions.end(), parts.begin);
  const size_t n = positions.size(), k_width = size_t{shape_.n_kv_heads} * shape_.head_dim,
               v_width = size_t{shape_.n_kv_heads} * shape_.v_head_dim;
  std::vector<float> k(n * k_width), v(n * v_width), old_k(n * k_width), old_v(n * v_width);
  std::vector<std::vector<double>> out;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    engine_.read_kv(full, layer, positions, k.data(), v.data());
    engine_.read_kv(reused, layer, positions, old_k.data(), old_v.data());
    out.push_back(
        kv_deviation({k.data(), v.data()}, {old_k.data(), old_v.data()}, n, k_width, v_width));
  }
  return out;
}

}  // namespace kvasir
