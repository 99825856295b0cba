// What counts of right and wrong answers say: intervals of a share and of a difference between two
// strategies on the same samples, and whether that difference is chance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvasir {

// Of intervals and verdicts: the chance that one leaves the truth out, or says that there is a
// difference where there is none, over all comparisons of a run together.
inline constexpr double kSignificanceLevel = 0.05;

double mean(std::span<const double> values);  // 0 of none

struct Interval {
  double low = 0, high = 1;
};

// Where values lie, whatever they are distributed like.
struct Spread {
  uint64_t n = 0;
  double median = 0, first_quartile = 0, third_quartile = 0;
  // Of the median of what they are drawn from: between two of the values, counted from both ends,
  // so that it leaves the median out in at most 5 % of the draws (Thompson 1936). None below 6
  // values.
  std::optional<Interval> median_95;
};
Spread spread_of(std::vector<double> values);
// Of the share n_right / n, 95 %: Wilson 1927.
Interval wilson_interval(uint64_t n_right, uint64_t n);
// Of a share seen in n answers, of which there need not be a whole number.
Interval wilson_interval_of(double share, double n);

// The probability that at most `most` of n are right, each with chance p.
double binomial_tail(uint64_t most, uint64_t n, double p);
// The fewest right answers of n that do not refute a chance of `share`: fewer come in at most
// error_rate of the runs of a strategy that has it.
uint64_t least_right(uint64_t n, double share, double error_rate);

// Two strategies on the same samples, the second against the first.
struct PairedCounts {
  uint64_t n = 0;
  uint64_t n_lost = 0;  // the first alone is right
  uint64_t n_won = 0;   // the second alone is
  void add(bool first_is_right, bool second_is_right) {
    ++n;
    n_lost += first_is_right && !second_is_right;
    n_won += !first_is_right && second_is_right;
  }
};

// Of the difference of the shares of right answers, (n_won - n_lost) / n, 95 %: Agresti and Min
// 2005, which is Wald's after half a sample has been added to each of the four cells.
Interval difference_interval(const PairedCounts& pairs);

// Two-sided p of the pairs that differ, when losing and winning are equally likely: McNemar 1947,
// exactly. 1 when none differs.
double mcnemar_p(const PairedCounts& pairs);

// Holm 1979: each p made so large that all comparisons together err in no more than the level asked
// of one. In the order given.
std::vector<double> holm(std::span<const double> p);

// The samples with which McNemar's test would see a difference like the observed one in four runs
// of five, were its p the least of n_comparisons under Holm: exact up to 1,000 samples, above it
// Connor 1987. None when no difference was observed.
std::optional<uint64_t> samples_to_tell(const PairedCounts& pairs, size_t n_comparisons);

// Whether so many comparisons of n samples could find anything at 5 % after Holm, whatever the
// answers: not when p is above it even where every sample is lost.
bool can_ever_tell(uint64_t n, size_t n_comparisons);
// The normal distribution's approximation: the samples with which a test of the mean at 5 % /
// n_comparisons finds it in four runs of five; mean_square: of the values, under the hypothesis,
// too.
double samples_to_tell_mean(double mean, double mean_square, size_t n_comparisons);
// How often a difference that is announced with so many samples is to be found.
inline constexpr double kAnnouncedPower = 0.8;

// The first that holds.
enum class Verdict {
  kEquivalent,  // the difference's interval lies within the margin
  kWorse,       // p after Holm at most 5 %
  kBetter,      // likewise
  kSame,        // no sample differs, of so many that lost ones would tell
  kCannotTell,
  kNeverTell,  // could not with any answers: too few samples
};
const char* name(Verdict verdict);  // "equivalent", …, "cannot tell", "could never tell"

// `p`: after Holm over n_comparisons. margin: a difference of shares that does not matter; 0: each
// does.
Verdict verdict(const PairedCounts& pairs, double p, size_t n_comparisons, double margin);
// Likewise, of an interval of the difference, and where n_drawn samples, each of one or more pairs,
// were drawn.
Verdict verdict(const Interval& difference, const PairedCounts& pairs, uint64_t n_drawn, double p,
                size_t n_comparisons, double margin);

struct Judgement {
  double p = 1;  // McNemar's, after Holm over the comparisons
  Verdict verdict = Verdict::kSame;
};
// Comparisons that are made together, in the order given: 5 % of error in "worse" and "better" for
// all of them; "equivalent" holds at 95 % for each by itself.
std::vector<Judgement> judge(std::span<const PairedCounts> comparisons, double margin);

}  // namespace kvasir
