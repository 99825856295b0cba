// What reusing chunks changes in a model: deviations of K and V by layer and by place, and the
// divergence that is left after computing a share of the tokens again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/session/blend_arm.h"

namespace kvasir::tool {

struct BlendBenchOptions {
  std::string file;  // text; empty: made-up prose
  uint32_t n_chunks = 8, chunk_tokens = 256, question_tokens = 32;
  uint64_t seed = 1;
  std::vector<BlendArm> arms;
  BlendConfig loading;   // of the prompts whose loading is timed
  uint32_t n_loads = 0;  // of them, of each tier and way; 0: none
};

struct BlendBench {
  Setup setup;
  std::string strategy;
  uint32_t n_chunks = 0, chunk_tokens = 0, question_tokens = 0;
  struct Arm {
    std::string label;
    double recomputed_share = 0, kl = 0, seconds = 0;  // kl: mean over the question's tokens
    double attention = 0;  // attention_deviation() from the first arm, of the question's tokens
  };
  std::vector<Arm> arms;
  // Deviations of what is reused from a full pass (core/blend/deviation.h), means over tokens.
  std::vector<double> of_layer;  // behind the first chunk
  std::vector<double>
      rank_correlation;          // of layer i with layer i + 1, tokens behind the first chunk
  std::vector<double> of_chunk;  // mean of the layers from 1 on
  // The same prompt with its chunks in one tier, layers loaded ahead or when they are needed.
  struct Loading {
    ChunkTier tier = ChunkTier::kMemory;
    bool ahead = true;
    double load_layer = 0, wait_layer = 0;       // seconds, means of the layers, medians of prompts
    double overlap_share = 0, ttft_seconds = 0;  // medians
  };
  std::vector<Loading> loading;
  double loading_ratio = 0;
  uint32_t n_loads = 0;
};

BlendBench bench_blend(Session& session, const BlendBenchOptions& options);
Json to_json(const BlendBench& bench);
std::string to_text(const BlendBench& bench);

}  // namespace kvasir::tool
