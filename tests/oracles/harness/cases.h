// Random cases for all strategies: shapes, cache layouts, and what happens to the sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/cache_layout.h"
#include "tests/oracles/harness/world.h"
#include "tests/oracles/random.h"

namespace kvasir::oracle {

struct Action {
  enum class Kind {
    kPrompt,    // n tokens appended to `sequence`
    kDecode,    // n steps of every open sequence together, new tokens each
    kFork,      // a copy of `sequence`
    kTruncate,  // `sequence` forgets what stands at n and beyond
  } kind;
  uint32_t sequence = 0, n = 0;
};

struct Case {
  uint32_t index = 0;
  uint64_t seed = 0;
  Shape shape;
  CacheLayout cache;
  uint32_t chunk_size = 512;
  uint32_t budget_tokens = 0;  // at least one
  uint32_t context = 0;        // tokens of the first prompt
  std::vector<Action> script;
  std::string text() const;
};

struct CaseOptions {
  bool second_prompts = true;
  uint32_t n_layers = 2;
};

// The i-th case: every 24 in a row have all of group 1, 4, 8 x head_dim 64, 128 x block size 16,
// 32, 64, 128.
Case make_case(uint32_t index, const CaseOptions& options);

// More than 200, and few under sanitizers; KVASIR_ORACLE_CASES says otherwise.
uint32_t case_count();
bool are_cases_reduced();  // by one or the other

}  // namespace kvasir::oracle
