// The attention backend alone, behind the plugin boundary and over blocks of a storage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/model/synthetic/prescribed_model.h"
#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/bench/made_up_context.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

struct AttentionShape {
  uint32_t n_q_heads = 32, n_kv_heads = 8, head_dim = 128, block_size = 128;
  uint32_t n_blocks = 96;                                  // chosen per kv head, at random
  uint32_t window_tokens = 4096;                           // attended besides
  uint32_t n_prompt = 512;                                 // queries of a piece of a prompt
  bool rounds = true;                                      // as where a model computes in bf16
  std::vector<uint32_t> depths;                            // keys of decoded tokens
  std::vector<uint32_t> prompt_depths;                     // keys before a piece of a prompt
  std::vector<std::pair<std::string, std::string>> types;  // of stored K and V; "" = the default
};

enum class AttentionKind { kDense, kBlocks, kPrompt };

struct AttentionRow {
  AttentionKind kind = AttentionKind::kDense;
  uint32_t depth = 0, n_queries = 1;
  std::string type_k, type_v;
  Typical ms;                       // in the backend
  double attend_ms = 0;             // with the core's work around it: parts, leases, checks
  uint64_t kv_bytes = 0;            // of K and V attended, each once
  uint64_t tokens_attended = 0;     // over the kv heads; of a decoded token
  double flop = 0;                  // 2 per multiply-add of q K and p V, masked keys left out
  std::string name() const;         // "dense @ d131072", "blocks @ d131072", "pp512 @ d8192"
  double bytes_per_second() const;  // 0 for prompts, whose queries share what is read
  double flop_per_second() const { return ms.middle > 0 ? 1e3 * flop / ms.middle : 0; }
};

struct AttentionReport {
  AttentionShape shape;
  std::string backend;
  uint32_t n_repetitions = 0;
  MeasuredLimits limits;
  std::vector<AttentionRow> rows;
};
Json to_json(const AttentionReport& report);
std::string to_text(const AttentionReport& report);

// One layer, keys and values from `options.seed`. The backend and whatever else options.set says.
// Repetitions of all rows take turns. Error(kResource) when the keys do not fit into memory.
AttentionReport measure_attention(const Options& options, const AttentionShape& shape,
                                  uint32_t n_repetitions);

}  // namespace kvasir::tool
