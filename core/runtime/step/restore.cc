// See restore.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/restore.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

uint64_t unit_of(uint32_t block_size, uint32_t chunk, bool is_independent) {
  return is_independent ? block_size : std::lcm(uint64_t{block_size}, uint64_t{chunk});
}

// Names of the prompt's blocks, as its chunks would give them. Where a result depends on how many
// tokens share a step, only whole chunks are named: the others then come in the same steps as ever.
ContentHash names_of(const StrategyRun& run, std::span<const int32_t> tokens, bool is_independent,
                     uint32_t chunk) {
  const uint32_t block_size = run.geometry().block_size;
  ContentHash names(run.content_run, block_size);
  const auto usable = static_cast<uint32_t>(tokens.size() - 1);  // the last one gives logits
  const uint64_t unit = unit_of(block_size, chunk, is_independent);
  const uint64_t n = usable / unit * unit;
  const uint32_t together = is_independent ? 0 : chunk;
  names.append(tokens.first(n), together);
  return names;
}

uint32_t chunk_of(const StrategyRun& run, uint32_t max_step_tokens) {
  return std::min(max_step_tokens, std::max(1u, run.context.cache.chunk_size.value));
}

// Names of the blocks that the storage may have of a prompt.
ContentHash names_to_find(const StrategyRun& run, std::span<const int32_t> tokens,
                          uint32_t max_step_tokens, std::vector<Hash128>& names) {
  const Model& model = run.context.model;
  const RopeConfig& rope = model.shape().rope;
  if (tokens.size() < 2 ||
      (rope.scaling == RopeScaling::kDynamicNtk && tokens.size() > rope.original_context))
    return {};
  ContentHash content =
      names_of(run, tokens, model.tokens_are_independent(), chunk_of(run, max_step_tokens));
  while (const Hash128* name = content.block(static_cast<uint32_t>(names.size())))
    names.push_back(*name);
  return content;
}

uint32_t whole_units(const StrategyRun& run, size_t n_blocks, uint32_t max_step_tokens) {
  const uint32_t unit = restore_unit(run, max_step_tokens);
  return static_cast<uint32_t>(n_blocks * run.geometry().block_size / unit * unit);
}

void take_tokens(Sequence& seq, ContentHash content, std::span<const int32_t> tokens) {
  seq.content = std::move(content);
  seq.kv_len = static_cast<uint32_t>(tokens.size());
  seq.tokens.assign(tokens.begin(), tokens.end());
}

// What restored blocks make of an empty sequence.
uint32_t hold(StrategyRun& run, Sequence& seq, ContentHash content,
              std::span<const int32_t> tokens) {
  take_tokens(seq, std::move(content), tokens);
  hold_restored(run, seq);
  return seq.kv_len;
}

}  // namespace

void hold_restored(StrategyRun& run, Sequence& seq) {
  seq.prompt_begin = seq.prompt_end = seq.kv_len;
  run.refeed(seq, 0, 0, false);
}

uint32_t restore_unit(const StrategyRun& run, uint32_t max_step_tokens) {
  return static_cast<uint32_t>(unit_of(run.geometry().block_size, chunk_of(run, max_step_tokens),
                                       run.context.model.tokens_are_independent()));
}

uint32_t share_restored(const StrategyRun& from_run, const Sequence& from, StrategyRun& run,
                        Sequence& seq, std::span<const int32_t> tokens) {
  const uint32_t n = from.kv_len, block_size = run.geometry().block_size;
  const bool is_restored = !from.fault && n > 0 && from.prompt_begin == n && from.prompt_end == n &&
                           from.content.block(n / block_size - 1);
  if (!is_restored || n >= tokens.size() || from_run.content_run != run.content_run ||
      !std::equal(from.tokens.begin(), from.tokens.end(), tokens.begin()))
    return 0;
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer)
    run.store->share(from.layers[layer], seq.layers[layer]);
  return hold(run, seq, from.content, tokens.first(n));
}

uint32_t restore_prefix(StrategyRun& run, Sequence& seq, std::span<const int32_t> tokens,
                        uint32_t max_step_tokens) {
  std::vector<Hash128> names;
  ContentHash content = names_to_find(run, tokens, max_step_tokens, names);
  for (uint32_t layer = 0; layer < run.geometry().n_layers && !names.empty(); ++layer) {
    names.resize(run.store->restore(seq.layers[layer], layer, names));
    run.release_step(seq.layers[layer]);
  }
  const uint32_t n = whole_units(run, names.size(), max_step_tokens);
  {
    const BlockStore::LetGoTogether together(*run.store);  // what later layers did not have
    for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer)
      run.store->truncate(seq.layers[layer], layer, n);
  }
  if (n == 0) return 0;
  content.truncate(n);
  return hold(run, seq, std::move(content), tokens.first(n));
}

uint32_t restore_first_layer(StrategyRun& run, Sequence& seq, std::span<const int32_t> tokens,
                             uint32_t max_step_tokens) {
  std::vector<Hash128> names;
  ContentHash content = names_to_find(run, tokens, max_step_tokens, names);
  if (names.empty()) return 0;
  LayerState& first = seq.layers[0];
  const uint32_t found = run.store->restore(first, 0, names);
  run.release_step(first);
  const uint32_t n = whole_units(run, found, max_step_tokens);
  run.store->truncate(first, 0, n);
  if (n == 0) return 0;
  names.resize(n / run.geometry().block_size);
  content.truncate(n);
  take_tokens(seq, std::move(content), tokens.first(n));
  seq.awaited = std::move(names);
  return n;
}

bool restore_layer(StrategyRun& run, Sequence& seq, uint32_t layer) {
  LayerState& state = seq.layers[layer];
  if (!state.blocks.empty()) return true;
  const uint32_t found = run.store->restore(state, layer, seq.awaited);
  run.release_step(state);
  if (found == seq.awaited.size()) return true;
  run.store->truncate(state, layer, 0);
  return false;
}

}  // namespace kvasir
