// BoundaryCalls across the plugin boundary: as few per layer and step as abi/README.md says,
// whatever the strategy, and not more for more sequences.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kVocab = 300, kLayers = 3;
constexpr uint32_t kPrompt = 230, kPiece = 46, kDecoded = 40;

struct BoundaryCalls {
  std::vector<uint64_t> prompt, decode;  // [steps] of all layers
};

// Sequences with one prompt, read and answered in lockstep.
BoundaryCalls calls_of(const Entry& entry, uint32_t n_seqs) {
  Bench bench(8, 2, entry.head_dim);
  EngineOptions options;
  options.max_sequences = n_seqs;
  options.max_step_tokens = n_seqs * kPiece;
  const auto engine = bench.engine(strategy_of(entry), options);
  std::vector<SequenceId> seqs;
  for (uint32_t i = 0; i < n_seqs; ++i) {
    seqs.push_back(engine->open());
    engine->begin_prompt(seqs[i], kPrompt);
  }
  const auto step = [&](std::span<const TokenId> tokens) {
    const auto so_far = [&] {
      return engine->prefill_engagement().boundary_calls +
             engine->decode_engagement().boundary_calls;
    };
    const uint64_t before = so_far();
    std::vector<StepItem> items;
    std::vector<float> logits(n_seqs * kVocab);
    for (uint32_t i = 0; i < n_seqs; ++i)
      items.push_back({.seq = seqs[i],
                       .tokens = tokens,
                       .logits = std::span(logits).subspan(i * kVocab, kVocab)});
    for (const ItemResult& result : engine->step(items)) CHECK(!result.error);
    return so_far() - before;
  };
  BoundaryCalls calls;
  const std::vector<TokenId> prompt = some_tokens(kPrompt, 3);
  for (uint32_t at = 0; at < kPrompt; at += kPiece)
    calls.prompt.push_back(step(std::span(prompt).subspan(at, kPiece)));
  for (TokenId token = 0; token < static_cast<TokenId>(kDecoded); ++token)
    calls.decode.push_back(step(std::span(&token, 1)));
  return calls;
}

double mean(const std::vector<uint64_t>& steps) {
  uint64_t sum = 0;
  for (const uint64_t n : steps) sum += n;
  return static_cast<double>(sum) / (static_cast<double>(steps.size()) * kLayers);
}

}  // namespace

TEST_SUITE_BEGIN("strategies/boundary");

TEST_CASE("a layer makes at most eight calls in a step, for one sequence as for three") {
  for (const Entry& entry : entries()) {
    INFO("strategy: " << entry.name);
    const BoundaryCalls one = calls_of(entry, 1), three = calls_of(entry, 3);
    CHECK(mean(three.decode) <= 8);
    // Which blocks are still in the memory tier depends on how many sequences want them.
    if (entry.small.find("tiered") != std::string::npos) continue;
    CHECK(three.decode == one.decode);
    if (entry.slice.empty()) {
      CHECK(three.prompt == one.prompt);
      CHECK(mean(one.prompt) <= 8);
    }
  }
}
