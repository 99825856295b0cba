// Runs several strategies on the same prompt and the same tokens behind it: those of a text, or
// those that dense attention generates greedily. Each strategy's predictions are compared with
// dense's, and those of a strategy that chooses with its mask's, which chooses nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/masked.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct ComparedStrategy {
  RunReport run;
  std::optional<std::string> prefill_shared_with;  // the strategy whose pass over the prompt it was
  double top1_agreement = 1.0;                     // share of steps with dense attention's token
  double mean_kl = 0.0;                            // KL(dense || strategy) in nats
  double mean_kl_error = 0.0;  // its standard error, tokens taken as independent
  // Of the tokens of the text that are fed, each after those before it, but the first, which the
  // prompt predicts. None where they are dense attention's own, or only one.
  std::optional<double> perplexity;
  // Against its mask; none where it has no mask.
  struct Masked {
    Kept tokens;  // of those that dense attention predicts
    PairedLoss kl;
    bool choice_matters() const { return !tokens.without_choice() || kl.choice_matters(); }
  };
  std::optional<Masked> masked;
};

struct Comparison {
  Setup setup;
  uint64_t prompt_tokens = 0;
  uint32_t decode_steps = 0;
  bool fed_text = false;
  double load_ms = 0;
  double most_attended = kMostAttendedPercent;
  std::vector<ComparedStrategy> strategies;  // dense first
};

// Feeds n_steps tokens behind the prompt: `fed`, which are so many, or where it is empty those that
// dense attention generates. Reports on stderr as each strategy is done. Loads the session's model.
Comparison compare_strategies(Session& session, const std::vector<Arm>& arms,
                              const std::vector<TokenId>& prompt, uint32_t n_steps,
                              const std::vector<TokenId>& fed, bool with_masks);

Json to_json(const Comparison& comparison);
std::string to_text(const Comparison& comparison);
std::string to_line(const ComparedStrategy& strategy);

}  // namespace kvasir::tool
