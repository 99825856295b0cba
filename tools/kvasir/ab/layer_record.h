// What one strategy captures of dense attention in one layer, a line of layers.csv.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::tool {

// Tokens with the largest mass of a query, of which a strategy attended to a share.
constexpr uint32_t kHeaviestTokens = 64;

// Means over the decoded queries of a sample and over query heads; all queries, keys and values are
// dense attention's.
struct LayerFigures {
  double attended = 0;  // tokens per kv head and query
  double captured = 0;  // share of the attention mass on these tokens
  double exact = 0;     // on as many tokens of largest mass, at the strategy's unit and scope
  double recall = 0;    // share of the kHeaviestTokens that are among them
  double error = 0;     // |output - dense output| / |dense output|
};

struct LayerRecord {
  std::string task;
  uint32_t length = 0;
  uint64_t index = 0;  // of the sample
  std::string strategy;
  uint32_t layer = 0;  // from 1 on
  LayerFigures figures;
};

std::string layer_header();  // lines without their end
std::string to_line(const LayerRecord& record);
std::optional<LayerRecord> parse_layer_record(const std::string& line);  // none: it is no such line

}  // namespace kvasir::tool
