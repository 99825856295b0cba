// Pictures of an A/B run, as HTML and inline SVG. Classes are those of the style in html.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "tools/kvasir/ab/summary.h"

namespace kvasir::tool {

// What a verdict looks like: "dense", "worse", "fine", "odd", "open" or "failed".
std::string look_of(const AbCell& cell);

// Cells of one task and length: a line for each strategy, accuracy with its 95 % interval.
std::string accuracy_plot(const AbSummary& summary, std::span<const AbCell> cells);
// The same cells: a line for each arm, how much faster than dense attention it decodes.
std::string speed_plot(std::span<const AbCell> cells);
// The same cells: accuracy over bytes read for a token; arms of one sweep are joined.
std::string bytes_plot(std::span<const AbCell> cells);
// One strategy and task: a row for each length, a column for each depth that was asked for, else
// for each fifth of the prompt.
std::string depth_map(const AbSummary& summary, const std::string& task, const std::string& label);

// One task at several lengths: a row for each arm, a column for each length, how much faster than
// dense attention it decodes.
std::string speed_map(const AbSummary& summary, const std::string& task);
// Cells of one task and length: a row for each arm, a column for each layer, the captured mass.
std::string layer_map(std::span<const AbCell> cells);

}  // namespace kvasir::tool
