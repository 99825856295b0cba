// What a run took and what its attention did: read from the engine, printed as text and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/engine.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

// What a command counts and times itself.
struct RunFigures {
  uint32_t prompt_tokens = 0, generated_tokens = 0;
  uint32_t cached_prompt_tokens = 0;    // of the prompt, found in a file, not read
  uint32_t restored_prompt_tokens = 0;  // likewise, found in the storage's store
  double restore_ms = 0;                // looking for them
  uint32_t reused_prompt_tokens = 0;    // likewise, of chunks that were read alone
  double chunks_ms = 0;                 // reading those, before the prompt

  double load_ms = 0, prefill_ms = 0, decode_ms = 0;
};

// Above this share of the considered tokens a strategy's results are dense attention's.
inline constexpr double kMostAttendedPercent = 90;

struct PluginUsed {
  std::string id, version, file;
};

// One strategy of one engine.
struct RunReport {
  std::string strategy;
  std::vector<PluginUsed> plugins;
  std::string attention, window_attention;  // ids; the second is empty outside hybrid mode
  RunFigures figures;
  Engagement prefill, decode;
  double crossing_nanos = 0;  // of one call over the plugin boundary
  struct Checks {             // validate mode: so far
    uint64_t calls = 0, compared = 0;
    std::string reference{};
  };
  std::optional<Checks> checks{};

  uint32_t prompt_tokens_read() const;
  double first_token_ms() const { return figures.restore_ms + figures.prefill_ms; }
  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;
  double attended_percent() const;  // of the tokens that decoding considered
  // Of a strategy that is compared: whether it left out enough to be told from dense attention.
  bool has_engaged(double most_percent) const { return attended_percent() <= most_percent; }
};
RunReport run_report(Engine& engine, const RunFigures& figures, StrategyId strategy = 0);

// Field names as in the strategy and the headers; sums over decode steps, layers and kv heads.
Json to_json(const RunReport& report);
// Of several strategies: how many tokens of their prompts were found in a store; "" for none.
std::string restored_text(const std::vector<const RunReport*>& reports);
// Lines: prompt cache, timings, engagement, hybrid mode, device copies, keys skipped, boundary,
// tiers, checks. Those that do not apply are left out.
std::string to_text(const RunReport& report);
// A line about strategies that did not engage.
std::string not_engaged_text(const std::vector<std::string>& strategies, double most_percent);

}  // namespace kvasir::tool
