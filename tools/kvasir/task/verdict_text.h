// A verdict of a comparison in words, and what a table's verdicts stand on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/task/clusters.h"

namespace kvasir::tool {

// "worse, p 0.016", "suspicious: better, …", "cannot tell, n 23". p: after Holm over n_comparisons;
// negative: the verdict is a watched one and has none.
std::string verdict_text(const PairedCounts& pairs, Verdict verdict, double p,
                         size_t n_comparisons);
std::string verdict_text(const ClusteredPairs& pairs, Verdict verdict, double p,
                         size_t n_comparisons);

// Lines below a table that explain those of its verdicts that need it. margin: a share.
std::string verdict_notes(std::span<const Verdict> verdicts, double margin);

}  // namespace kvasir::tool
