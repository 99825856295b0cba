// What happened to a sequence, so that it can be done again alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <random>

#include "tests/strategies/table.h"

namespace kvasir::test {

// How far logits may be from those of the sequence alone: in f32 not a bit.
constexpr double kCompany = 0;

struct Op {
  enum class Kind { kBeginPrompt, kTokens, kEndPrompt, kCut } kind = Kind::kTokens;
  uint32_t n = 0;               // tokens of the prompt; kv_len after the cut
  std::vector<TokenId> tokens;  // a piece, or one that is decoded
};

// Engines of one sequence at a time, one per entry, made when first asked for.
class Soloists {
 public:
  explicit Soloists(uint32_t max_step_tokens) : max_step_tokens_(max_step_tokens) {}
  // Logits after each kTokens.
  Logits play(const Entry& entry, const std::vector<Op>& ops);

 private:
  struct Soloist {
    std::unique_ptr<Bench> bench;
    std::unique_ptr<Engine> engine;
  };
  uint32_t max_step_tokens_;
  std::map<std::string, Soloist> of_entry_;
};

// Close, and with the same greedy token, unless two were as good as one.
void check_as_alone(const Logits& got, const Logits& alone, double bound);

struct Dice {
  std::mt19937 bits;
  explicit Dice(uint32_t seed) : bits(seed) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(bits() % n); }
  uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  bool one_in(uint32_t n) { return below(n) == 0; }
};

// The seeds of a random test: n of them, or KVASIR_TEST_SEED alone, to look into one.
std::vector<uint32_t> seeds(uint32_t n);

// Entries that can stand in one engine: those over models of the head_dim.
std::vector<const Entry*> entries_of(uint32_t head_dim);

}  // namespace kvasir::test
