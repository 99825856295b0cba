// Phrases that table, Markdown and HTML share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

std::string title(const AbSummary& summary);      // "quest, snapkv against dense on passkey at …"
std::string right_text(const AbCell& cell);       // "38/40"
std::string points_text(const Interval& shares);  // "-12.0 to +3.1"
std::string verdict_words(const AbSummary& summary, const AbCell& cell);
// Header and rows of the table of verdicts.
std::vector<std::string> verdict_header(const AbSummary& summary);
std::vector<std::string> verdict_row(const AbSummary& summary, const AbCell& cell);
std::vector<size_t> verdict_numbers(const AbSummary& summary);  // columns that are numbers
// What the arms capture of dense attention: a row for each of a task and length that was looked at.
Table layer_table(const AbSummary& summary);
std::vector<std::string> layer_notes(const AbSummary& summary);
// What the verdicts stand on, who failed, who did not engage: sentences.
std::vector<std::string> notes(const AbSummary& summary);

}  // namespace kvasir::tool
