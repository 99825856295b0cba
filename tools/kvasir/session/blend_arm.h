// How a prompt of chunks is read, as a flag says it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/blend/blender.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct BlendArm {
  std::string label;  // as typed
  BlendConfig config;
};

// "full", "reuse", … of blend_mode_names(); "0.15": mode ratio; "random:0.15", "oracle:0.15". What
// it does not say is as in `base`. Error(kInput) naming `flag`.
BlendArm parse_blend_arm(const std::string& text, const BlendConfig& base, const std::string& flag);
std::vector<BlendArm> parse_blend_arms(const std::string& list, const BlendConfig& base,
                                       const std::string& flag);
// What such a flag may say, for help texts.
inline constexpr const char* kBlendArmHelp =
    "full, prefix, reuse, reuse_uncorrected, auto, a share of tokens computed again as 0.15, or "
    "that share of random:0.15 or oracle:0.15";

// The BOS that prompts of the model start with, where it has one.
std::optional<TokenId> leading_bos(const Tokenizer& tokenizer);
// What chunks are read behind.
std::optional<TokenId> chunk_bos(const Tokenizer& tokenizer, const BlendConfig& config);

// A part of a prompt that is encoded alone: without BOS, special tokens as the text they are.
// Error(kInput) naming it by `what` when it has no tokens.
std::vector<TokenId> chunk_tokens(const Tokenizer& tokenizer, const std::string& text,
                                  const std::string& what);

// Throws Error(kResource) when what is left for sequences of the loaded session does not hold the
// chunks, a prompt of so many tokens that reuses them, and with `oracle` one that is computed
// whole.
void check_blend_memory(const Session& session, const Engine& engine, uint32_t n_tokens,
                        bool oracle);

// {"mode", "ratio", "reason", "chunk_tokens", "recomputed_share", "recomputed_per_layer",
// "load_ms_per_layer", "wait_ms_per_layer", "load_ms", "overlap_share", "tier",
// "tier_load_ms_per_layer", "place_ms", "recompute_ms", "question_ms", "ttft_ms"}.
Json to_json(const BlendReport& report);
// A line of the run's report.
std::string to_text(const BlendReport& report);

}  // namespace kvasir::tool
