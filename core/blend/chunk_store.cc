// See chunk_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/chunk_store.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLookAgain{20};

}  // namespace

ChunkStore::~ChunkStore() {
  for (const Chunk& chunk : chunks_)
    if (chunk.seq) engine_.close(chunk.seq);
}

ChunkId ChunkStore::add(std::span<const TokenId> tokens) {
  if (tokens.empty()) throw input_error("a chunk is empty: give at least one token");
  const auto same = [&](const Chunk& chunk) { return std::ranges::equal(chunk.tokens, tokens); };
  const auto known = std::find_if(chunks_.begin(), chunks_.end(), same);
  if (known != chunks_.end()) return static_cast<ChunkId>(known - chunks_.begin());
  chunks_.push_back({{tokens.begin(), tokens.end()}});
  try {
    take(chunks_.back());
  } catch (...) {
    chunks_.pop_back();
    throw;
  }
  return static_cast<ChunkId>(chunks_.size() - 1);
}

uint32_t ChunkStore::length(const Chunk& chunk) const {
  return first_position() + static_cast<uint32_t>(chunk.tokens.size());
}

// What reads a chunk. A store keeps whole blocks: tokens behind the chunk fill its last one, and
// one more is there to be computed when all blocks are found. They change nothing of what comes
// before them. Where more than a block is found at a time, they would take too long.
std::vector<TokenId> ChunkStore::prompt_of(const Chunk& chunk) const {
  std::vector<TokenId> prompt;
  if (bos_) prompt.push_back(*bos_);
  prompt.insert(prompt.end(), chunk.tokens.begin(), chunk.tokens.end());
  const kvasir_geometry& geometry = engine_.geometry(strategy_);
  const uint32_t unit = engine_.restore_unit(strategy_);
  const uint64_t filled =
      (prompt.size() + geometry.block_size - 1) / geometry.block_size * geometry.block_size + 1;
  if (unit == geometry.block_size && filled <= geometry.max_context)
    prompt.resize(filled, chunk.tokens.back());
  return prompt;
}

// Takes the chunk's first layer from the store; false, and no sequence, where that has not all.
bool ChunkStore::find_stored(Chunk& chunk) {
  const SequenceId seq = engine_.open(strategy_);
  try {
    if (engine_.restore_first_layer(seq, prompt_of(chunk)) < length(chunk)) {
      engine_.close(seq);
      return false;
    }
  } catch (...) {
    engine_.close(seq);
    throw;
  }
  chunk.seq = seq;
  chunk.is_stored = true;
  return true;
}

// The first layer is written before others.
bool ChunkStore::all_layers_stored(Chunk& chunk) {
  if (!find_stored(chunk)) return false;
  const SequenceId seq = std::exchange(chunk.seq, 0);
  const bool all = engine_.restore_other_layers(seq);
  engine_.close(seq);
  return all;
}

void ChunkStore::read(Chunk& chunk) {
  const SequenceId seq = engine_.open(strategy_);
  try {
    const std::vector<TokenId> prompt = prompt_of(chunk);
    const uint32_t n_restored = engine_.restore(seq, prompt);
    engine_.prefill(seq, std::span(prompt).subspan(n_restored), {});
    restored_tokens_ += n_restored;
  } catch (...) {
    engine_.close(seq);
    throw;
  }
  chunk.seq = seq;
  chunk.is_stored = false;
}

// From the store, or else reads it: false.
bool ChunkStore::take(Chunk& chunk) {
  if (!find_stored(chunk)) {
    read(chunk);
    return false;
  }
  restored_tokens_ += length(chunk);
  return true;
}

void ChunkStore::read_again(ChunkId id) {
  let_go(id);
  read(chunks_[id]);
}

void ChunkStore::let_go(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  if (chunk.seq) engine_.close(std::exchange(chunk.seq, 0));
}

bool ChunkStore::bring(ChunkId id, std::chrono::milliseconds patience) {
  Chunk& chunk = chunks_.at(id);
  if (chunk.seq) return true;
  const auto until = Clock::now() + patience;
  while (Clock::now() < until && !all_layers_stored(chunk))  // it may be written at this moment
    std::this_thread::sleep_for(kLookAgain);
  return take(chunk);
}

std::span<const TokenId> ChunkStore::tokens(ChunkId chunk) const {
  if (chunk >= chunks_.size())
    throw input_error("there is no chunk " + std::to_string(chunk) + ": " +
                      std::to_string(chunks_.size()) + " were added");
  return chunks_[chunk].tokens;
}

uint32_t ChunkStore::n_kept(ChunkId id) const {
  const Chunk& chunk = chunks_.at(id);
  const uint32_t unit = engine_.restore_unit(strategy_);
  if (unit == 0) return 0;
  const auto n_full = static_cast<uint32_t>(prompt_of(chunk).size() / unit * unit);
  return std::min(length(chunk), n_full);
}

// The last token of what is restored is always computed.
bool ChunkStore::is_kept_whole(ChunkId id) const {
  const Chunk& chunk = chunks_.at(id);
  const uint32_t unit = engine_.restore_unit(strategy_);
  return unit != 0 && (prompt_of(chunk).size() - 1) / unit * unit >= length(chunk);
}

SequenceId ChunkStore::fork(ChunkId id) {
  const Chunk& chunk = chunks_.at(id);
  if (!engine_.restore_other_layers(chunk.seq)) throw ChunkGone(id);
  const SequenceId seq = engine_.fork(chunk.seq);
  try {
    engine_.truncate(seq, length(chunk));
  } catch (...) {
    engine_.close(seq);
    throw;
  }
  return seq;
}

void ChunkStore::fetch_kv(ChunkId id, uint32_t layer, uint32_t begin, uint32_t n, float* k,
                          float* v) {
  const Chunk& chunk = chunks_.at(id);
  const SequenceId seq = chunk.seq;
  const auto started = Clock::now();
  ChunkTier tier = ChunkTier::kMemory;
  uint32_t n_loaded = n;
  if (!engine_.has_layer(seq, layer)) {
    if (!engine_.restore_layer(seq, layer)) throw ChunkGone(id);
    tier = ChunkTier::kStore;
    n_loaded = length(chunk);
  }
  std::vector<uint32_t> positions(n);
  std::iota(positions.begin(), positions.end(), first_position() + begin);
  const uint64_t n_fetched = engine_.read_kv(seq, layer, positions, k, v);
  if (tier == ChunkTier::kMemory && n_fetched > 0) tier = ChunkTier::kFile;
  loading_[static_cast<size_t>(tier)].add(
      n_loaded, std::chrono::duration<double>(Clock::now() - started).count());
}

}  // namespace kvasir
