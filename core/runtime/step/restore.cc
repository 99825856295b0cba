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

// What restored blocks make of an empty sequence.
uint32_t hold(StrategyRun& run, Sequence& seq, ContentHash content,
              std::span<const int32_t> tokens) {
  seq.content = std::move(content);
  seq.kv_len = seq.prompt_begin = seq.prompt_end = static_cast<uint32_t>(tokens.size());
  seq.tokens.assign(tokens.begin(), tokens.end());
  run.refeed(seq, 0, 0, false);
  return seq.kv_len;
}

}  // namespace

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
  const RunContext& c = run.context;
  const uint32_t block_size = run.geometry().block_size;
  const bool is_independent = c.model.tokens_are_independent();
  const uint32_t chunk = std::min(max_step_tokens, std::max(1u, c.cache.chunk_size.value));
  const RopeConfig& rope = c.model.shape().rope;
  if (tokens.size() < 2 ||
      (rope.scaling == RopeScaling::kDynamicNtk && tokens.size() > rope.original_context))
    return 0;
  ContentHash content = names_of(run, tokens, is_independent, chunk);
  std::vector<Hash128> names;
  while (const Hash128* name = content.block(static_cast<uint32_t>(names.size())))
    names.push_back(*name);
  for (uint32_t layer = 0; layer < run.geometry().n_layers && !names.empty(); ++layer) {
    names.resize(run.store->restore(seq.layers[layer], layer, names));
    run.release_step(seq.layers[layer]);
  }
  const uint64_t unit = unit_of(block_size, chunk, is_independent);
  const auto n = static_cast<uint32_t>(names.size() * block_size / unit * unit);
  {
    const BlockStore::LetGoTogether together(*run.store);  // what later layers did not have
    for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer)
      run.store->truncate(seq.layers[layer], layer, n);
  }
  if (n == 0) return 0;
  content.truncate(n);
  return hold(run, seq, std::move(content), tokens.first(n));
}

}  // namespace kvasir
