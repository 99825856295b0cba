// Chunks of text that were read alone, each a sequence of the engine that holds its K and V.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/blend/controller.h"
#include "core/runtime/engine.h"

namespace kvasir {

using ChunkId = uint32_t;

// `engine` must outlive it; its sequences are closed with it.
class ChunkStore {
 public:
  // bos: what each chunk is read behind; it is no part of the chunk.
  ChunkStore(Engine& engine, StrategyId strategy, std::optional<TokenId> bos)
      : engine_(engine), strategy_(strategy), bos_(bos) {}
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Reads the tokens alone, but for what the storage has kept of them (Engine::restore). A chunk of
  // the same tokens is read once. Error(kInput) for an empty chunk, or one longer than the context.
  ChunkId add(std::span<const TokenId> tokens);
  // Error(kInput) when there is no such chunk.
  std::span<const TokenId> tokens(ChunkId chunk) const;
  // The sequence that holds it, behind `bos` where there is one.
  SequenceId sequence(ChunkId chunk) const { return chunks_.at(chunk).seq; }
  uint32_t first_position() const { return bos_ ? 1 : 0; }  // of a chunk in its sequence
  // K and V of tokens [begin, begin + n) of the chunk, as Engine::read_kv() gives them.
  void fetch_kv(ChunkId chunk, uint32_t layer, uint32_t begin, uint32_t n, float* k, float* v);

  uint64_t restored_tokens() const { return restored_tokens_; }  // kept, not computed
  // What computing chunks took, of those that were computed whole.
  const LayerSpeed& computing() const { return computing_; }

 private:
  struct Chunk {
    std::vector<TokenId> tokens;
    SequenceId seq;
  };
  Engine& engine_;
  StrategyId strategy_;
  std::optional<TokenId> bos_;
  std::vector<Chunk> chunks_;
  LayerSpeed computing_;
  uint64_t restored_tokens_ = 0;
};

}  // namespace kvasir
