// The figures that the field argues with, of recorded attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/trace/trace_world.h"

namespace kvasir::tool {

// Tokens that count as the first ones (attention sinks), the last ones, and the heaviest ones.
inline constexpr uint32_t kFirstTokens = 4, kLastTokens = 64, kHeaviestTokens = 64;

// Means over the decoded queries and all query heads of one recorded layer; shares from 0 to 1.
struct LayerAnalysis {
  uint32_t layer = 0;                    // of the model
  double first_mass = 0, last_mass = 0;  // on the first and the last tokens, the query's included
  double tokens_of_90 = 0;               // share of the tokens that hold 90 % of the mass
  double below_1_percent = 0;            // share of the tokens below 1 % of the heaviest one's mass
  // Of the mass added up over the decoded queries: what the heaviest 5 % of the tokens hold.
  double accumulated_top_5 = 0;
  // Of the heaviest tokens of a query: those that were among them one token before; those that were
  // not, but among them earlier. Of a query and the one of the token before, before rotation. None
  // where one token was decoded.
  std::optional<double> stayed, returned, query_cosine;
  // Largest of the channels' means of |k| before rotation, over the median of all channels.
  double key_outlier = 0;
  // Of the inputs of this layer and the one before it; of the query and the one projected from the
  // input of the layer before; and the share of the query's heaviest tokens that the latter finds.
  std::optional<double> input_cosine, ahead_cosine, ahead_recall;
};

// Means over all recorded layers, of queries that see about so many tokens.
struct LengthAnalysis {
  uint32_t n_tokens = 0;
  double tokens_of_90 = 0, below_1_percent = 0;
};

struct TraceAnalysis {
  std::string file;
  TraceHeader header;
  std::vector<LayerAnalysis> layers;
  std::vector<LengthAnalysis> lengths;  // 256 and its doubles, as far as the prompt goes
};

TraceAnalysis analyse(const Trace& trace, const std::string& file, ThreadPool& pool);

Json to_json(const TraceAnalysis& analysis);
std::string to_text(const TraceAnalysis& analysis);

}  // namespace kvasir::tool
