// The index: means, codes and tables of what leaves the window, and cuts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>

#include "plugins/selector/magicpig/magicpig.h"

namespace kvasir::magicpig {
namespace {

constexpr uint32_t kHashChunk = 256;  // tokens per task

}  // namespace

// Tokens of the generation are cut off; a cut inside the prompt changes the mean: all anew.
kvasir_status MagicPig::seq_truncate(std::span<const uint64_t> seqs,
                                     std::span<const uint32_t> kv_len) {
  bool rebuild = false;
  for (size_t i = 0; i < seqs.size(); ++i) {
    for (Layer& layer : state_of(seqs[i]).layers) {
      rebuild |= !layer.truncate(kv_len[i], geometry_.window_tokens);
    }
  }
  return rebuild ? KVASIR_REBUILD : KVASIR_OK;
}

// The candidates of the first prompt, or what came after: prompt end, blocks that leave the window,
// and blocks fed again after a cut.
void MagicPig::update(const sdk::Step& step, const sdk::UpdateItems& items) {
  if (o_.n_bits == 0) return;
  std::vector<LeasedTokens> leased(step.n_seqs());
  const bool again = step.moment() == KVASIR_MOMENT_BETWEEN_STEPS;
  for (const kvasir_update_item& item : items) {
    const kvasir_step_seq& seq = step.seq(item.seq);
    const Layer& layer = layer_of(seq.id, step.layer());
    const bool first = layer.hashed_end == 0, decode = seq.phase == KVASIR_PHASE_DECODE;
    const bool wanted = item.flags & KVASIR_ITEM_PROMPT_END ||
                        (item.flags & KVASIR_ITEM_FINAL && (decode || !first)) || (again && first);
    if (!wanted) continue;
    const uint32_t begin = item.block * geometry_.block_size;
    const bool final = item.flags & KVASIR_ITEM_FINAL;
    const uint32_t end = std::min(begin + item.n_tokens, final ? UINT32_MAX : seq.unit_end);
    if (leased[item.seq].empty()) leased[item.seq].reserve(items.size() * geometry_.block_size);
    // A sequence that began without a prompt is told of its first blocks before its sink is whole.
    const uint32_t candidates = std::max(seq.unit_begin, geometry_.sink_tokens);
    for (uint32_t t = std::max({begin, layer.hashed_end, candidates}); t < end; ++t) {
      leased[item.seq].emplace_back(t, item.lease);
    }
  }
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const kvasir_step_seq& seq = step.seq(s);
    Layer& layer = layer_of(seq.id, step.layer());
    const bool at_prompt_end = step.moment() == KVASIR_MOMENT_PROMPT_END;
    if (at_prompt_end) choose_static(layer, seq);
    if (!leased[s].empty()) extend(step, seq, leased[s]);
    if (at_prompt_end || (again && !leased[s].empty())) {
      layer.prompt_end = seq.prompt_end;
      layer.prompt_hashed = layer.hashed_end;
    }
  }
}

void MagicPig::extend(const sdk::Step& step, const kvasir_step_seq& seq,
                      const LeasedTokens& leased) {
  Layer& layer = layer_of(seq.id, step.layer());
  const bool first = layer.hashed_end == 0;
  for (uint32_t t = first ? seq.unit_begin : layer.hashed_end; t < leased.front().first; ++t) {
    layer.skipped.push_back(t);
  }
  hash(step.layer(), layer, leased);
  layer.hashed_end = leased.back().first + 1;
  if (first) layer.mean_end = std::max(seq.prompt_end, layer.hashed_end);
}

std::vector<float> MagicPig::mean_of(const LeasedTokens& leased, uint32_t kv_head) const {
  std::vector<double> sum(geometry_.head_dim);
  std::vector<float> k(geometry_.head_dim);
  for (const auto& [token, lease] : leased) {
    read_key(*lease, kv_head, token, k.data());
    for (uint32_t d = 0; d < geometry_.head_dim; ++d) sum[d] += k[d];
  }
  for (uint32_t d = 0; d < geometry_.head_dim; ++d) {
    k[d] = static_cast<float>(sum[d] / static_cast<double>(leased.size()));
  }
  return k;
}

void MagicPig::hash(uint32_t index, Layer& layer, const LeasedTokens& leased) {
  const uint32_t dim = geometry_.head_dim;
  host_.for_each(geometry_.n_kv_heads, [&](uint32_t kv_head) {
    auto& mean = layer.heads[kv_head].mean;
    if (!mean) mean = std::make_shared<const std::vector<float>>(mean_of(leased, kv_head));
  });
  std::vector<uint16_t> code(leased.size() * o_.n_tables);
  std::vector<float> norm(leased.size());
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    const std::vector<float>& mean = *layer.heads[kv_head].mean;
    host_.parallel_for(leased.size(), kHashChunk, [&](uint64_t begin, uint64_t end, uint32_t) {
      std::vector<float> centred((end - begin) * dim), work;
      for (uint64_t i = begin; i < end; ++i) {
        float* k = centred.data() + (i - begin) * dim;
        read_key(*leased[i].second, kv_head, leased[i].first, k);
        double square = 0.0;
        for (uint32_t d = 0; d < dim; ++d) {
          k[d] -= mean[d];
          square += double{k[d]} * k[d];
        }
        norm[i] = static_cast<float>(std::sqrt(square));
      }
      planes_of(index, kv_head)
          .codes(centred.data(), dim, end - begin, code.data() + begin * o_.n_tables, work);
    });
    add_segments(layer.heads[kv_head], leased, code, norm);
  }
}

// New segments behind the old ones; while the last is not larger than what follows it the two
// become one, so that there are few however long the generation is.
void MagicPig::add_segments(Head& head, const LeasedTokens& leased, std::span<const uint16_t> code,
                            std::span<const float> norm) const {
  std::vector<uint32_t> tokens;
  tokens.reserve(leased.size());
  for (const auto& [token, lease] : leased) tokens.push_back(token);
  const uint64_t limit = max_segment_tokens(o_.layout);
  for (size_t begin = 0, end; begin < tokens.size(); begin = end) {
    end = begin;
    while (end < tokens.size() && tokens[end] - tokens[begin] < limit) ++end;
    const size_t n = end - begin;
    head.segments.push_back(std::make_shared<const Segment>(
        o_.layout, o_.n_bits, o_.n_tables, std::span(tokens).subspan(begin, n),
        code.subspan(begin * o_.n_tables, n * o_.n_tables), norm.subspan(begin, n)));
    while (head.segments.size() > 1) {
      const Segment& last = *head.segments.back();
      const Segment& before = *head.segments[head.segments.size() - 2];
      if (before.end() - before.begin() > last.end() - last.begin() ||
          last.end() - before.begin() > limit) {
        break;
      }
      auto joined = before.joined(last);
      head.segments.pop_back();
      head.segments.back() = std::move(joined);
    }
  }
}

}  // namespace kvasir::magicpig
