// K and V of chunks into a sequence, and tokens of them computed again; see blender.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/blend/blender_impl.h"
#include "core/error.h"

namespace kvasir {

double BlendReport::recomputed_share() const {
  if (chunk_tokens == 0 || recomputed.empty()) return 0;
  const uint64_t sum = std::accumulate(recomputed.begin(), recomputed.end(), uint64_t{0});
  return static_cast<double>(sum) /
         (static_cast<double>(chunk_tokens) * static_cast<double>(recomputed.size()));
}

double BlendReport::load_seconds() const {
  double sum = 0;
  for (const LayerLoad& layer : loads) sum += layer.load;
  return sum;
}

double BlendReport::wait_seconds() const {
  double sum = 0;
  for (const LayerLoad& layer : loads) sum += layer.wait;
  return sum;
}

double BlendReport::overlap_share() const {
  const double all = load_seconds();
  return all > 0 ? std::max(0.0, 1 - wait_seconds() / all) : 0;
}

SequenceId Blender::place(const BlendPrompt& prompt, BlendMode mode,
                          const std::function<void()>& between) {
  BlendConfig config;
  config.mode = mode;
  if (const std::string why = cannot_blend(prompt, config); !why.empty()) throw input_error(why);
  for (;;) {
    try {
      for (const ChunkId chunk : prompt.chunks) chunks_.bring(chunk);
      return place(layout(prompt), prompt, mode, nullptr, between);
    } catch (const ChunkGone& gone) {
      chunks_.read_again(gone.chunk);
    }
  }
}

// Begins a prompt of lead and chunks.
void Blender::read_lead(SequenceId seq, const BlendPrompt& prompt, const Layout& parts) {
  engine_.begin_prompt(seq, parts.end());
  for (size_t at = 0; at < prompt.lead.size(); ++at)
    run_step(engine_, {.seq = seq, .tokens = std::span(prompt.lead).subspan(at, 1)});
}

SequenceId Blender::place(const Layout& parts, const BlendPrompt& prompt, BlendMode mode,
                          std::vector<LayerLoad>* loads, const std::function<void()>& between) {
  Guarded seq(engine_, engine_.open(strategy_));
  read_lead(seq.get(), prompt, parts);
  const uint32_t most = std::min(engine_.max_step_tokens(),
                                 engine_.pipeline(strategy_).strategy.cache.chunk_size.value);
  for (const ChunkId chunk : prompt.chunks) {
    const auto n = static_cast<uint32_t>(chunks_.tokens(chunk).size());
    for (uint32_t begin = 0; begin < n; begin += most) {
      call(between);
      place_piece(seq.get(), chunk, begin, std::min(most, n - begin),
                  mode != BlendMode::kReuseUncorrected, loads);
    }
  }
  return seq.take();
}

void Blender::place_piece(SequenceId seq, ChunkId chunk, uint32_t begin, uint32_t n, bool turns,
                          std::vector<LayerLoad>* loads) {
  const auto to = static_cast<int64_t>(engine_.kv_len(seq));
  const int64_t from = int64_t{chunks_.first_position()} + begin;
  const std::vector<int32_t> turn(n, turns ? static_cast<int32_t>(to - from) : 0);
  // Nobody asks for the queries: strategies that would are refused.
  const uint64_t q_width = uint64_t{shape_.n_q_heads} * shape_.head_dim;
  run_step(engine_, {.seq = seq,
                     .tokens = chunks_.tokens(chunk).subspan(begin, n),
                     .given =
                         [&](uint32_t layer, uint32_t, uint32_t, float* q, float* k, float* v) {
                           std::fill_n(q, n * q_width, 0.0f);
                           double seconds = 0;
                           {
                             const Timed timed(seconds);
                             chunks_.fetch_kv(chunk, layer, begin, n, k, v);
                           }
                           if (!loads) return;
                           (*loads)[layer].load += seconds;
                           (*loads)[layer].wait += seconds;
                         },
                     .given_turn = turn});
}

// By how much keys are turned, of all tokens of chunks.
std::vector<int32_t> Blender::turns_of(const BlendPrompt& prompt, const Layout& parts) const {
  std::vector<int32_t> turns;
  for (const ChunkId chunk : prompt.chunks)
    turns.insert(turns.end(), chunks_.tokens(chunk).size(),
                 static_cast<int32_t>(parts.begin + turns.size()) -
                     static_cast<int32_t>(chunks_.first_position()));
  return turns;
}

void Blender::load_layer(const BlendPrompt& prompt, uint32_t layer, float* k, float* v) {
  for (const ChunkId chunk : prompt.chunks) {
    const auto n = static_cast<uint32_t>(chunks_.tokens(chunk).size());
    chunks_.fetch_kv(chunk, layer, 0, n, k, v);
    k += uint64_t{n} * shape_.n_kv_heads * shape_.head_dim;
    v += uint64_t{n} * shape_.n_kv_heads * shape_.v_head_dim;
  }
}

void Blender::place_and_recompute(SequenceId seq, const BlendPrompt& prompt, const Layout& parts,
                                  const BlendConfig& wanted, uint64_t seed,
                                  const Narrowing::TrueDeviation* truth, BlendReport& report) {
  double all = 0, waited = 0;
  {
    const Timed timed(all);
    read_lead(seq, prompt, parts);
    const std::vector<int32_t> turns = turns_of(prompt, parts);
    const Placing placing{
        .load = [&](uint32_t layer, float* k, float* v) { load_layer(prompt, layer, k, v); },
        .turn = turns,
        .ahead = wanted.load_ahead,
        .loaded =
            [&](uint32_t layer, double load, double wait) {
              report.loads[layer] = {load, wait};
              waited += wait;
            }};
    recompute(seq, parts, wanted, placing, seed, truth, report);
  }
  report.place_seconds += waited;
  report.recompute_seconds += all - waited;
}

void Blender::recompute(SequenceId seq, const Layout& parts, const BlendConfig& wanted,
                        const Placing& placing, uint64_t seed,
                        const Narrowing::TrueDeviation* truth, BlendReport& report) {
  std::vector<uint32_t> positions(parts.end() - parts.first_changed);
  std::iota(positions.begin(), positions.end(), parts.first_changed);
  const auto n_most = static_cast<uint32_t>(positions.size());
  BlendConfig config = wanted;
  const auto schedule = [&] {
    return narrowing_schedule(shape_.n_layers, parts.n_chunk_tokens(), n_most, config);
  };
  Narrowing narrowing(report.mode, schedule(), config.check_layer, seed, truth,
                      shape_.n_kv_heads * shape_.head_dim, shape_.n_kv_heads * shape_.v_head_dim);
  Clock::time_point begun{};
  const auto narrow = [&](const RecomputedLayer& layer) {
    if (layer.layer == 0) begun = Clock::now();
    if (layer.layer == config.check_layer && wanted.mode == BlendMode::kAuto) {
      double computed = std::chrono::duration<double>(Clock::now() - begun).count();
      for (uint32_t i = 1; i <= layer.layer; ++i) computed -= report.loads[i].wait;
      decide_ratio(parts, computed / config.check_layer * parts.n_chunk_tokens() / n_most, config,
                   report);
      narrowing.set_schedule(schedule());
    }
    return narrowing(layer);
  };
  run_step(engine_, {.seq = seq,
                     .tokens = std::span(parts.context).subspan(parts.begin),
                     .recompute = positions,
                     .narrow = narrow,
                     .placing = &placing});
  report.recomputed = narrowing.kept();
}

std::vector<TierTime> Blender::tier_times(uint32_t n_tokens) const {
  std::vector<TierTime> times;
  for (uint32_t i = 0; i < kChunkTiers; ++i) {
    const auto tier = static_cast<ChunkTier>(i);
    if (chunks_.loading(tier).is_known())
      times.push_back({tier, chunks_.loading(tier).seconds(n_tokens)});
  }
  return times;
}

void Blender::decide_ratio(const Layout& parts, double compute_layer, BlendConfig& config,
                           BlendReport& report) const {
  BlendTimes times{0, compute_layer, tier_times(parts.n_chunk_tokens())};
  // Of a chunk that was brought, the first layer came before.
  for (uint32_t layer = 1; layer <= config.check_layer; ++layer)
    times.load_layer += report.loads[layer].load / config.check_layer;
  const BlendDecision decided = decide(times, config);
  config.ratio = report.ratio = decided.ratio;
  report.tier = decided.tier;
  report.reason = decided.reason;
}

}  // namespace kvasir
