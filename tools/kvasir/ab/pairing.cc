// See pairing.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/pairing.h"

#include <utility>

namespace kvasir::tool {
namespace {

// Calls both(first, second) for every question of a context that both answered, and
// end_of_context() behind its last. Both lists ascend by sample and question.
template <class Both, class End>
void each_pair(const Records& first, const Records& second, Both&& both, End&& end_of_context) {
  const auto place = [](const AbRecord& r) { return std::pair(r.index, r.question); };
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    if (place(*first[i]) != place(*second[j])) {
      ++(place(*first[i]) < place(*second[j]) ? i : j);
      continue;
    }
    const AbRecord &a = *first[i++], &b = *second[j++];
    if (a.failed || b.failed) continue;
    both(a, b);
    if (i == first.size() || first[i]->index != a.index) end_of_context();
  }
}

}  // namespace

ClusteredPairs pair(const Records& first, const Records& second, uint32_t n_questions) {
  ClusteredPairs out(n_questions);
  PairedCounts context;
  each_pair(
      first, second, [&](const AbRecord& a, const AbRecord& b) { context.add(a.right, b.right); },
      [&] {
        out.add(context);
        context = {};
      });
  return out;
}

void compare(AbCell& cell, const Records& dense, const Records& records, uint32_t n_questions) {
  cell.pairs = pair(dense, records, n_questions);
  struct Times {
    uint64_t prefill = 0, decode = 0;
    void add(const AbRecord& r) {
      prefill += r.prefill_nanos;
      decode += r.decode_nanos;
    }
  } of_dense, of_arm;
  PairedCounts later;
  std::vector<double> prefill, decode;
  const auto add_ratio = [](std::vector<double>& to, uint64_t dense_nanos, uint64_t nanos) {
    if (dense_nanos > 0 && nanos > 0)
      to.push_back(static_cast<double>(dense_nanos) / static_cast<double>(nanos));
  };
  each_pair(
      dense, records,
      [&](const AbRecord& a, const AbRecord& b) {
        of_dense.add(a);
        of_arm.add(b);
        if (n_questions == 1) return;
        cell.questions[b.question - 1].pairs.add(a.right, b.right);
        if (b.question == 1) later.add(b.right, a.right);
        if (b.question == n_questions) later.add(a.right, b.right);
      },
      [&] {
        if (n_questions > 1) cell.later.add(later);
        add_ratio(prefill, of_dense.prefill, of_arm.prefill);
        add_ratio(decode, of_dense.decode, of_arm.decode);
        of_dense = of_arm = {};
        later = {};
      });
  if (!prefill.empty()) cell.prefill_ratio = spread_of(std::move(prefill));
  if (!decode.empty()) cell.decode_ratio = spread_of(std::move(decode));
}

}  // namespace kvasir::tool
