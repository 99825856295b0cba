// See chunk_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/chunk_store.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>

#include "core/error.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

ChunkStore::~ChunkStore() {
  for (const Chunk& chunk : chunks_) engine_.close(chunk.seq);
}

ChunkId ChunkStore::add(std::span<const TokenId> tokens) {
  if (tokens.empty()) throw input_error("a chunk is empty: give at least one token");
  const auto same = [&](const Chunk& chunk) { return std::ranges::equal(chunk.tokens, tokens); };
  const auto known = std::find_if(chunks_.begin(), chunks_.end(), same);
  if (known != chunks_.end()) return static_cast<ChunkId>(known - chunks_.begin());
  std::vector<TokenId> prompt;
  if (bos_) prompt.push_back(*bos_);
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  const SequenceId seq = engine_.open(strategy_);
  try {
    const uint32_t n_restored = engine_.restore(seq, prompt);
    const auto computed = std::span(prompt).subspan(n_restored);
    const auto begin = Clock::now();
    engine_.prefill(seq, computed, {});
    // What is left of a restored chunk is few tokens, which take longer each.
    if (n_restored == 0)
      computing_.add(computed.size() * engine_.geometry(strategy_).n_layers, seconds_since(begin));
    restored_tokens_ += n_restored;
    chunks_.push_back({{tokens.begin(), tokens.end()}, seq});
  } catch (...) {
    engine_.close(seq);
    throw;
  }
  return static_cast<ChunkId>(chunks_.size() - 1);
}

std::span<const TokenId> ChunkStore::tokens(ChunkId chunk) const {
  if (chunk >= chunks_.size())
    throw input_error("there is no chunk " + std::to_string(chunk) + ": " +
                      std::to_string(chunks_.size()) + " were added");
  return chunks_[chunk].tokens;
}

void ChunkStore::fetch_kv(ChunkId chunk, uint32_t layer, uint32_t begin, uint32_t n, float* k,
                          float* v) {
  std::vector<uint32_t> positions(n);
  std::iota(positions.begin(), positions.end(), first_position() + begin);
  engine_.read_kv(sequence(chunk), layer, positions, k, v);
}

}  // namespace kvasir
