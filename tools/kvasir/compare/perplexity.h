// Perplexity of a text by llama-perplexity's rule: tokens in chunks of the context's size, the
// first token of each replaced by BOS. Positions context/2 … context-2 predict the tokens after
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct Perplexity {
  double perplexity = 0, standard_error = 0, mean_nll = 0;
  uint64_t predicted_tokens = 0, n_chunks = 0;
  uint32_t context = 0;
  std::string strategy;
};

// `tokens` fill at least one chunk. Loads the session's model.
Perplexity perplexity(Session& session, const std::vector<TokenId>& tokens, uint32_t context);

Json to_json(const Perplexity& result);
std::string to_text(const Perplexity& result);

}  // namespace kvasir::tool
