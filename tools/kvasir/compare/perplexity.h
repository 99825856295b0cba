// Perplexity of a text by llama-perplexity's rule: tokens in chunks of the context's size, the
// first token of each replaced by BOS. Positions context/2 … context-2 predict the tokens after
// them.
//
// Most strategies read a prompt densely, so what prefill predicts would be dense attention's. Under
// a strategy that chooses or evicts, the first half of each chunk is its prompt and the tokens that
// predict are decoded: the text's own tokens one by one, whatever the model would have said. The
// strategy masked, with nothing chosen, is scored beside it: what the choice is worth.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/session/masked.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct PerplexityOptions {
  uint32_t context = 512;  // tokens of a chunk, at least 4
  bool decode = false;     // dense attention through decode, too
  bool with_mask = true;   // of a strategy that chooses
  double most_attended = kMostAttendedPercent;
};

struct Perplexity {
  double perplexity = 0, standard_error = 0, mean_nll = 0;
  uint64_t predicted_tokens = 0, n_chunks = 0;
  uint32_t context = 0;
  std::string strategy;
  bool is_decoded = false;        // else by prefill, densely
  double attended_percent = 100;  // of the tokens that decoding considered
  bool leaves_out = true;         // enough of them, of a strategy that was decoded
  double most_attended = kMostAttendedPercent;
  // Against its mask; none where it has no mask.
  struct Masked {
    double perplexity = 0;
    Kept tokens;  // of those that it predicts, which are the text's
    PairedLoss nll;
    bool choice_matters() const { return !tokens.without_choice() || nll.choice_matters(); }
  };
  std::optional<Masked> masked;

  bool has_engaged() const { return leaves_out && (!masked || masked->choice_matters()); }
};

// `tokens` fill at least one chunk. Loads the session's model.
Perplexity perplexity(Session& session, const std::vector<TokenId>& tokens,
                      const PerplexityOptions& options);

Json to_json(const Perplexity& result);
std::string to_text(const Perplexity& result);

}  // namespace kvasir::tool
