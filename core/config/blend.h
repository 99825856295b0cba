// How a prompt is put together from chunks that were read before: the table [blend].
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

// What happens to the tokens of chunks. The question is always computed.
enum class BlendMode {
  kFull,              // all are computed: a plain prompt
  kPrefix,            // the first chunk is reused, the others are computed
  kReuse,             // all are reused, keys turned to their new positions (PromptCache)
  kReuseUncorrected,  // all are reused as they are, keys at the positions of their own chunk
  kRatio,             // CacheBlend, arXiv:2405.16444: those that deviate most are computed again
  kRandom,            // as many, drawn
  kOracle,            // as many, by their deviations from a full pass over the prompt
  kAuto,              // kRatio, with the share that loading the chunks hides
};
const char* name(BlendMode mode);  // "full", "prefix", "reuse", …
const std::vector<std::string>& blend_mode_names();
// Whether it computes a share of the tokens again, which BlendConfig::ratio says.
constexpr bool has_ratio(BlendMode mode) {
  return mode == BlendMode::kRatio || mode == BlendMode::kRandom || mode == BlendMode::kOracle;
}

struct BlendConfig {
  BlendMode mode = BlendMode::kRatio;
  double ratio = 0.15;      // of the chunks' tokens, on average over the layers from check_layer on
  double min_ratio = 0.15;  // kAuto: never fewer
  double narrowing = 0.25;  // the first of these layers computes (1 + narrowing) ratio, the last
                            // one (1 - narrowing) ratio
  uint32_t check_layer = 1;   // all tokens are computed up to the keys and values of this layer
  uint32_t min_tokens = 256;  // kAuto: fewer tokens of chunks are computed, all of them
  bool load_ahead = true;     // a layer of the chunks is loaded while the one before is computed
  bool chunks_behind_bos = true;  // a chunk is read behind the BOS that the prompt starts with
};

}  // namespace kvasir
