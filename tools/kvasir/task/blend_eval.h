// The same samples of chunks read in several ways; how many each answers, and after what time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/evaluate.h"
#include "core/task/statistics.h"
#include "tools/kvasir/session/blend_arm.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct BlendEvalOptions {
  std::vector<Task> tasks;  // with chunks
  std::vector<uint32_t> lengths;
  TaskOptions task;
  uint64_t seed = 1;
  uint32_t n_samples = 20;  // of each task and length
};

// One task, length and way of reading.
struct BlendCell {
  Task task = Task::kChunkBorder;
  uint32_t length = 0;
  std::string arm;
  std::vector<bool> correct;                                            // per sample
  std::vector<double> ttft_seconds, recomputed, recomputed_shares, kl;  // per sample
  std::vector<double> loaded_bytes;  // per sample: of K and V that were reused
  std::vector<std::string> decided;  // of mode auto, what it chose

  uint64_t n_correct() const;
};

struct BlendEval {
  Setup setup;
  std::string strategy;
  BlendEvalOptions options;
  size_t n_arms = 1;
  std::vector<BlendCell> cells;  // per length, task and arm; "full" is the first arm

  const BlendCell& control(size_t i) const { return cells[i - i % n_arms]; }
};

// Reports on stderr how far it has come. The first arm is mode full. Error(kInput) when a task has
// no chunks or does not fit a length, or the strategy cannot blend.
BlendEval evaluate_blends(Session& session, const std::vector<BlendArm>& arms,
                          const BlendEvalOptions& options);

Json to_json(const BlendEval& evaluation);
std::string to_text(const BlendEval& evaluation);

}  // namespace kvasir::tool
