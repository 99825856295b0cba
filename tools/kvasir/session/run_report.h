// Timings and engagement of a run, as text and as JSON; the progress bar.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <string>

#include "core/runtime/engine.h"

namespace kvasir::tool {

struct RunFigures {
  uint32_t prompt_tokens = 0, generated_tokens = 0;
  uint32_t cached_prompt_tokens = 0;  // of the prompt, found in a file, not read

  double load_ms = 0, prefill_ms = 0, decode_ms = 0;
};

// Field names as in the strategy and the headers; sums over decode steps, layers and kv heads.
nlohmann::ordered_json to_json(Engine& engine, const RunFigures& figures, StrategyId strategy = 0);
// Three lines on stderr: timings, engagement, boundary; a fourth where storage has several tiers.
std::string to_text(Engine& engine, const RunFigures& figures);

// "prefill [#####.....]  512/1024 tokens  123 tokens/s" on stderr, only when it is a terminal, at
// most ten times a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, bool enabled = true);
  ~ProgressBar();
  void update(uint64_t done, uint64_t total);

 private:
  std::string label_;
  bool enabled_, drawn_ = false;
  std::chrono::steady_clock::time_point begin_, last_;
};

}  // namespace kvasir::tool
