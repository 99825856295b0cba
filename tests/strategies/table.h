// Every shipped strategy as one entry: how it is made small, what a full budget is, and which
// properties it is exempt from by its own definition, with the reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/core/runtime/support.h"

namespace kvasir::test {

enum class Equal { kBits, kBound };  // kBound: logits within 1e-5 of the largest
// How counters show that the strategy was at work: it attends to less than there is, because it
// selects, in sequences that had a prompt (to evict by, or to choose from), or not at all.
enum class Engages { kSelects, kAfterPrompt, kNever };
// What truncate() may cut so that the sequence is as a fresh one: anything, tokens decoded since
// the last prompt, or nothing, since what was evicted does not come back.
enum class Rewinds { kAnywhere, kDecoded, kNever };

struct Entry {
  std::string name;
  std::string preset;  // configs/strategies/<preset>.toml
  // Settings, apart by spaces: "table.key=value", or "!table.key" for one that the preset says and
  // that is taken out.
  std::string small{};  // on the preset: sparse at the lengths tested
  std::string full{};   // on `small`: a budget that covers everything
  std::string half{};   // on `small`: half the budget; empty: there is none to halve
  Engages engages = Engages::kSelects;
  Equal full_is = Equal::kBits;
  uint32_t dense_up_to = 0;  // tokens cached below which `small` is dense, bit for bit
  Rewinds rewinds = Rewinds::kAnywhere;
  std::string slice{};  // key of the prompt tokens that share a choice; empty: prompts read densely
  std::string why{};    // of what is not the plain case
  uint32_t head_dim = 16;
  bool is_variant = false;  // of another entry: fewer sizes of each kind
};

const std::vector<Entry>& entries();

// Folders of plugins/selector. A twin of the device stands for the plugin without the prefix, which
// it chooses as: tests/plugins/cuda.
std::set<std::string> shipped_selectors();
const Entry& entry_named(const std::string& name);

// The preset with all of an entry's settings. Keys and values are kept in f32.
StrategyConfig strategy_of(const Entry& entry, const std::string& more = "");
// Dense attention over the same cache: of keys kept before RoPE if the strategy keeps them so and
// in a type that rounds them.
StrategyConfig dense_of(const StrategyConfig& strategy);

// Logits after each of the next n tokens of a generation, which depend on where it stands.
Logits feed(Engine& engine, SequenceId seq, uint32_t n);
// Logits of a sequence of its own: after the prompt (none when it is empty) and after each of
// n_decoded tokens.
Logits run(Engine& engine, uint32_t n_prompt, uint32_t n_decoded);

}  // namespace kvasir::test

// One subcase would run a whole test case again per entry: a loop that names it does it once.
#define KVASIR_FOR_EACH_ENTRY(entry)                               \
  for (const kvasir::test::Entry& entry : kvasir::test::entries()) \
    if (INFO("strategy: " << entry.name); true)
