// Strategies over a RecallWorld from the command line: the flags that its commands share, and the
// run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/kvasir/recall/recall_report.h"

namespace kvasir::tool {

// How the help of a command goes on, behind where its data come from.
inline constexpr const char* kRecallHelp =
    " All strategies attend to the same number of tokens; the table says how much of the true "
    "attention mass each one captures. The command searches the settings that give this number. "
    "-s NAME/token chooses tokens instead of blocks, NAME/shared makes one choice for all heads";

struct RecallFlags {
  std::vector<std::string> strategies;
  uint32_t budget = 512, block_size = 16, sink = 16, window = 64;  // tokens
  bool by_layer = false;
  bool keep_choices = false;  // in the results; no flag of its own
};
// -s -b --block-size --sink --window --seed -t --by-layer --json, and what goes with -s.
void add_recall_flags(CLI::App& app, Options& options, RecallFlags& flags);

// Where the world comes from. Memory is checked before it is made.
struct RecallSource {
  RecallShape shape;
  std::function<std::unique_ptr<RecallWorld>(ThreadPool& pool)> make;
  std::string what;    // in messages: "a context of 512 made-up tokens"
  std::string remedy;  // what makes it fit where memory is short
};
// The caller adds `planted` or `recorded`.
RecallReport measure_recall(const Options& options, const RecallFlags& flags,
                            const RecallSource& source);

}  // namespace kvasir::tool
