// See replay.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/serving/replay.h"

#include <algorithm>
#include <cstdlib>

namespace kvasir::test {

Logits Soloists::play(const Entry& entry, const std::vector<Op>& ops) {
  Soloist& solo = of_entry_[entry.name];
  if (!solo.engine) {
    solo.bench = std::make_unique<Bench>(8, 2, entry.head_dim);
    EngineOptions options;
    options.max_step_tokens = max_step_tokens_;
    solo.engine = solo.bench->engine(strategy_of(entry), options);
  }
  Engine& engine = *solo.engine;
  const SequenceId seq = engine.open();
  Logits out;
  for (const Op& op : ops) {
    if (op.kind == Op::Kind::kBeginPrompt) engine.begin_prompt(seq, op.n);
    if (op.kind == Op::Kind::kEndPrompt) engine.end_prompt(seq);
    if (op.kind == Op::Kind::kCut) engine.truncate(seq, op.n);
    if (op.kind != Op::Kind::kTokens) continue;
    out.emplace_back(engine.vocab_size());
    const StepItem item{.seq = seq, .tokens = op.tokens, .logits = out.back()};
    REQUIRE(engine.step({&item, 1})[0].text() == "");
  }
  engine.close(seq);
  return out;
}

void check_as_alone(const Logits& got, const Logits& alone, double bound) {
  REQUIRE(got.size() == alone.size());
  size_t n_others = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double lost = double{*std::max_element(alone[i].begin(), alone[i].end())} -
                        double{alone[i][static_cast<size_t>(best(got[i]))]};
    n_others += !(lost <= 2 * bound);
  }
  CHECK(max_difference(got, alone) <= bound);
  CHECK(n_others == 0);
}

std::vector<uint32_t> seeds(uint32_t n) {
  if (const char* only = std::getenv("KVASIR_TEST_SEED"))
    return {static_cast<uint32_t>(std::strtoul(only, nullptr, 10))};
  return up_to(n);
}

std::vector<const Entry*> entries_of(uint32_t head_dim) {
  std::vector<const Entry*> out;
  for (const Entry& entry : entries())
    if (entry.head_dim == head_dim) out.push_back(&entry);
  return out;
}

}  // namespace kvasir::test
