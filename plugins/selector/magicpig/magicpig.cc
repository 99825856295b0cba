// MagicPIG: draw tokens by locality-sensitive hashing with known probability and weigh them by its
// inverse. Chen et al. 2024, arXiv:2410.16179.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/magicpig.h"

#include <algorithm>
#include <string>

#include "kernels/topk.h"
#include "plugins/shared/layers.h"
#include "plugins/shared/pooling.h"

namespace kvasir::magicpig {

void MagicPig::validate(const kvasir_geometry& geometry) const {
  const uint64_t exact = uint64_t{o_.static_tokens} + geometry.block_size;
  if (o_.budget != 0 && o_.budget < exact) {
    sdk::fail_invalid("budget_tokens = " + std::to_string(o_.budget) +
                      " leaves nothing to draw: static tokens and one block take up to " +
                      std::to_string(exact) + ", raise it above");
  }
  sdk::require_rotated_keys(geometry);
}

void MagicPig::bind(const kvasir_geometry& geometry) {
  geometry_ = geometry;
  keys_ = sdk::LeasedKeys(geometry);
  seed_ = o_.seed.value_or(geometry.seed);
  if (o_.n_bits != 0) {
    const uint64_t n_groups = (geometry.n_layers + kPlanesLayers - 1) / kPlanesLayers;
    const uint64_t n_sets = o_.planes_per_head ? n_groups * geometry.n_kv_heads : 1;
    planes_.reserve(n_sets);
    for (uint64_t set = 0; set < n_sets; ++set) {
      planes_.emplace_back(seed_, set, o_.n_bits, o_.n_tables, geometry.head_dim);
    }
  }
}

void MagicPig::limits(kvasir_sel_limits& out) const {
  out.unit = KVASIR_UNIT_TOKEN;
  out.scope = KVASIR_SCOPE_Q_HEAD;
  if (o_.budget != 0) out.max_units = o_.budget;
  out.dense_below_tokens = uint64_t{geometry_.sink_tokens} + geometry_.window_tokens;
  out.memory = memory();
  if (o_.static_tokens == 0 || o_.n_bits == 0) return;
  out.mass.at = KVASIR_MASS_AT_PREFILL;
  out.mass.level = KVASIR_MASS_TOKEN;
  out.mass.reduce = KVASIR_MASS_SUM_KV_HEAD;
  out.mass.last_queries = o_.static_queries;
}

// Of prompts that fill the context. While one head is hashed its codes, norms and tokens stand
// beside the tables, and the list of tokens to hash for all heads: 16 bytes per token.
kvasir_memory MagicPig::memory() const {
  kvasir_memory out{};
  const uint64_t layers = sdk::n_sparse_layers(geometry_), n_kv_heads = geometry_.n_kv_heads;
  const uint64_t forced = uint64_t{geometry_.sink_tokens} + std::max(1u, geometry_.window_tokens);
  const uint64_t n = geometry_.max_context - std::min<uint64_t>(geometry_.max_context, forced);
  const uint64_t n_votes = o_.static_tokens == 0 ? 0 : geometry_.max_context;
  const uint64_t votes = sdk::VoteSums::bytes(n_kv_heads, n_votes) * layers;
  out.state_peak_bytes = votes;
  if (o_.n_bits == 0) return out;
  uint64_t head = (geometry_.head_dim + uint64_t{o_.static_tokens}) * sizeof(float);
  const uint64_t limit = max_segment_tokens(o_.layout);
  for (uint64_t rest = n; rest != 0; rest -= std::min(rest, limit)) {
    head += Segment::bytes(o_.layout, o_.n_bits, o_.n_tables, std::min(rest, limit));
  }
  out.state_bytes = head * n_kv_heads * layers * geometry_.max_sequences;
  for (const Planes& planes : planes_) out.state_bytes += planes.bytes();
  const uint64_t per_token = o_.n_tables * sizeof(uint16_t) + sizeof(float) + sizeof(uint32_t) +
                             sizeof(LeasedTokens::value_type);
  out.state_peak_bytes = out.state_bytes + std::max(votes, n * per_token);
  return out;
}

void MagicPig::layout(kvasir_layout& out) const {  // no slab, only update()
  out.flags = KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_WANT_FINAL;
}

void MagicPig::observe(const sdk::Step& step, const kvasir_mass& mass) {
  const uint32_t n_heads = geometry_.n_kv_heads;
  sdk::check_mass(mass, step.n_seqs() * n_heads);
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const kvasir_step_seq& seq = step.seq(s);
    layer_of(seq.id, step.layer()).votes.add(seq, mass, uint64_t{s} * n_heads, n_heads);
  }
}

// The candidates with the most mass, averaged over neighbours (SnapKV, arXiv:2404.14469).
void MagicPig::choose_static(Layer& layer, const kvasir_step_seq& seq) const {
  if (o_.static_tokens == 0 || layer.votes.votes.empty()) return;
  const uint32_t end = std::min(seq.unit_end, layer.votes.prompt_end);
  const uint32_t begin = std::min(seq.unit_begin, end), n = end - begin;
  std::vector<float> pooled(end);
  std::vector<uint64_t> scratch(kernels::top_k_scratch_bytes(n) / sizeof(uint64_t) + 1);
  for (uint32_t head = 0; head < geometry_.n_kv_heads; ++head) {
    sdk::pool(sdk::Pooling::kAverage, layer.votes.list(head), end, o_.kernel, pooled.data());
    auto& fixed = layer.heads[head].fixed;
    fixed.resize(std::min(n, o_.static_tokens));
    kernels::top_k(pooled.data() + begin, n, fixed.size(), fixed.data(), scratch.data());
    for (uint32_t& token : fixed) token += begin;
  }
  layer.votes = {};
}

}  // namespace kvasir::magicpig

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.magicpig", "0.1.0", kvasir::magicpig::MagicPig)
