// See blender.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/blender.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/blend/blender_impl.h"
#include "core/blend/deviation.h"
#include "core/error.h"

namespace kvasir {
namespace {

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

Blended Blender::blend(const BlendPrompt& prompt, const BlendConfig& wanted, uint64_t seed,
                       std::span<float> logits, const std::function<void()>& between) {
  if (const std::string why = cannot_blend(prompt, wanted); !why.empty()) throw input_error(why);
  const Layout parts = layout(prompt);
  BlendConfig config = wanted;
  std::string few;
  if (config.mode == BlendMode::kAuto) few = too_few_to_blend(parts.n_chunk_tokens(), config);
  if (!few.empty()) config.mode = BlendMode::kFull;
  for (;;) {
    try {
      Blended out = blend_once(prompt, parts, config, seed, logits, between);
      out.report.chunk_tokens = parts.n_chunk_tokens();
      out.report.tiers = tier_times(parts.n_chunk_tokens());
      if (!few.empty()) out.report.reason = few;
      keep_in(out.report.tier, prompt);
      return out;
    } catch (const ChunkGone& gone) {
      chunks_.read_again(gone.chunk);
    }
  }
}

// What a store has need not be here, too, when it comes in time.
void Blender::keep_in(std::optional<ChunkTier> tier, const BlendPrompt& prompt) {
  if (tier != ChunkTier::kStore) return;
  for (const ChunkId chunk : prompt.chunks)
    if (chunks_.is_stored(chunk)) chunks_.let_go(chunk);
}

Blended Blender::blend_once(const BlendPrompt& prompt, const Layout& parts,
                            const BlendConfig& config, uint64_t seed, std::span<float> logits,
                            const std::function<void()>& between) {
  if (config.mode == BlendMode::kFull || config.mode == BlendMode::kPrefix)
    return read_all(prompt, parts, config.mode == BlendMode::kPrefix, logits, between);
  Blended out;
  BlendReport& report = out.report;
  report.mode = config.mode == BlendMode::kAuto ? BlendMode::kRatio : config.mode;
  report.ratio = has_ratio(config.mode) ? config.ratio : 0;
  report.recomputed.assign(shape_.n_layers, 0);
  report.loads.resize(shape_.n_layers);
  {
    const Timed timed(report.place_seconds);
    for (const ChunkId chunk : prompt.chunks) chunks_.bring(chunk);
  }
  Narrowing::TrueDeviation truth;
  if (config.mode == BlendMode::kOracle) truth = true_deviation(prompt, parts, between);
  const bool computes =
      config.mode == BlendMode::kAuto || (has_ratio(config.mode) && config.ratio > 0);
  const auto begun = [&] {
    if (computes && parts.first_changed < parts.end()) return engine_.open(strategy_);
    const Timed timed(report.place_seconds);
    return place(parts, prompt, config.mode, &report.loads, between);
  };
  Guarded seq(engine_, begun());
  call(between);
  if (engine_.kv_len(seq.get()) == 0)
    place_and_recompute(seq.get(), prompt, parts, config, seed, &truth, report);
  call(between);
  {
    const Timed timed(report.question_seconds);
    read(engine_, seq.get(), prompt.question, logits, between);
  }
  out.seq = seq.take();
  return out;
}

// A plain prompt, or one behind the first chunk's own sequence.
Blended Blender::read_all(const BlendPrompt& prompt, const Layout& parts, bool reuses_first,
                          std::span<float> logits, const std::function<void()>& between) {
  Blended out;
  out.report.mode = reuses_first ? BlendMode::kPrefix : BlendMode::kFull;
  const bool forks = reuses_first && parts.first_changed > parts.begin;
  if (reuses_first && !forks)
    out.report.reason =
        "the first chunk was not read behind the tokens that the prompt starts with";
  const auto open = [&] {
    const Timed timed(out.report.place_seconds);
    if (forks) chunks_.bring(prompt.chunks[0]);
    return forks ? chunks_.fork(prompt.chunks[0]) : engine_.open(strategy_);
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

Narrowing::TrueDeviation Blender::true_deviation(const BlendPrompt& prompt, const Layout& parts,
                                                 const std::function<void()>& between) {
  const Guarded reused(engine_, place(parts, prompt, BlendMode::kReuse, nullptr, between));
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
