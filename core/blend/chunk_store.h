// Chunks of text that were read alone, each a sequence of the engine that holds its K and V.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/blend/controller.h"
#include "core/error.h"
#include "core/runtime/engine.h"

namespace kvasir {

using ChunkId = uint32_t;

// A store has lost K and V of a chunk since it was added.
class ChunkGone : public Error {
 public:
  explicit ChunkGone(ChunkId of)
      : Error(ErrorKind::kResource, "the store no longer has chunk " + std::to_string(of)),
        chunk(of) {}
  ChunkId chunk;
};

// `engine` must outlive it; its sequences are closed with it. A chunk that a store has is taken
// from there a layer at a time, when a layer is asked for.
class ChunkStore {
 public:
  // bos: what each chunk is read behind; it is no part of the chunk.
  ChunkStore(Engine& engine, StrategyId strategy, std::optional<TokenId> bos)
      : engine_(engine), strategy_(strategy), bos_(bos) {}
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Reads the tokens alone, unless the storage has kept them, or some of them (Engine::restore). A
  // chunk of the same tokens is read once. Error(kInput) for an empty chunk, or one longer than the
  // context.
  ChunkId add(std::span<const TokenId> tokens);
  // Reads a chunk anew that is gone.
  void read_again(ChunkId chunk);
  // Gives up what the process has of a chunk. bring() is to follow before the chunk is used.
  void let_go(ChunkId chunk);
  // Takes a chunk that was let go from the store, or reads it again where that does not have it:
  // then false. Nothing for a chunk that is here. Waits, no longer than told, until the store has
  // all of its layers.
  bool bring(ChunkId chunk, std::chrono::milliseconds patience = {});
  // Error(kInput) when there is no such chunk.
  std::span<const TokenId> tokens(ChunkId chunk) const;
  // A new sequence with the chunk, behind `bos` where there is one. Throws ChunkGone.
  SequenceId fork(ChunkId chunk);
  uint32_t first_position() const { return bos_ ? 1 : 0; }  // of a chunk in its sequence
  // K and V of tokens [begin, begin + n) of the chunk, as Engine::read_kv() gives them. Throws
  // ChunkGone.
  void fetch_kv(ChunkId chunk, uint32_t layer, uint32_t begin, uint32_t n, float* k, float* v);

  // Of the chunk and `bos`: how many tokens a store keeps (Engine::restore_unit).
  uint32_t n_kept(ChunkId chunk) const;
  bool is_kept_whole(ChunkId chunk) const;  // so that no token of it is computed again
  bool is_stored(ChunkId chunk) const { return chunks_.at(chunk).is_stored; }  // a store has it
  uint64_t restored_tokens() const { return restored_tokens_; }                // kept, not computed
  // What fetch_kv() took, by where the chunk lay.
  const LayerSpeed& loading(ChunkTier tier) const { return loading_[static_cast<size_t>(tier)]; }

 private:
  struct Chunk {
    std::vector<TokenId> tokens;
    SequenceId seq = 0;
    bool is_stored = false;
  };
  std::vector<TokenId> prompt_of(const Chunk& chunk) const;
  uint32_t length(const Chunk& chunk) const;  // of its sequence, at least
  bool find_stored(Chunk& chunk);
  bool all_layers_stored(Chunk& chunk);
  bool take(Chunk& chunk);
  void read(Chunk& chunk);

  Engine& engine_;
  StrategyId strategy_;
  std::optional<TokenId> bos_;
  std::vector<Chunk> chunks_;
  std::array<LayerSpeed, kChunkTiers> loading_;
  uint64_t restored_tokens_ = 0;
};

}  // namespace kvasir
