// See verdict_text.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/verdict_text.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

// samples_to_tell: asked where the words need it.
std::string words(Verdict verdict, double p,
                  const std::function<std::optional<uint64_t>()>& samples_to_tell) {
  const std::string with_p = p < 0 ? "" : format(", p %.2g", p);
  switch (verdict) {
    case Verdict::kWorse:
      return "worse" + with_p;
    case Verdict::kBetter:
      return "suspicious: better" + with_p;
    case Verdict::kCannotTell:
    case Verdict::kNeverTell: {
      const auto n = p < 0 ? std::nullopt : samples_to_tell();
      return name(verdict) +
             (n ? format(", n %llu", static_cast<unsigned long long>(*n)) : std::string());
    }
    default:
      return name(verdict);
  }
}

}  // namespace

std::string verdict_text(const PairedCounts& pairs, Verdict verdict, double p,
                         size_t n_comparisons) {
  return words(verdict, p, [&] { return samples_to_tell(pairs, n_comparisons); });
}

std::string verdict_text(const ClusteredPairs& pairs, Verdict verdict, double p,
                         size_t n_comparisons) {
  return words(verdict, p, [&] { return contexts_to_tell(pairs, n_comparisons); });
}

std::string verdict_notes(std::span<const Verdict> verdicts, double margin) {
  const auto any = [&](Verdict wanted) {
    return std::find(verdicts.begin(), verdicts.end(), wanted) != verdicts.end();
  };
  std::string out;
  if (any(Verdict::kCannotTell) || any(Verdict::kNeverTell))
    out += "\nn: samples with which such a difference would be seen in four runs of five.";
  if (any(Verdict::kNeverTell))
    out += "\nCould never tell: not even if every sample were lost; give more samples (-n).";
  if (any(Verdict::kEquivalent))
    out += format("\nEquivalent: the 95 %% interval of the difference lies within %g points.",
                  100 * margin);
  if (any(Verdict::kBetter))
    out += "\nSuspicious: a strategy leaves out what dense attention sees; look how it can win.";
  return out;
}

}  // namespace kvasir::tool
