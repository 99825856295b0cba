// What the cases of a duel really went through, counted while they ran, and what every strategy's
// cases must have gone through.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace kvasir::oracle {

// What a duel's cases reach in the end. Block sizes: those that the strategy's own setting allows;
// options: by the names that the duel gives them.
struct Demand {
  std::vector<uint32_t> block_sizes = {16, 32, 64, 128};
  std::vector<std::string> options = {};  // each of them in kOptionChoices real choices
  static constexpr uint64_t kOptionChoices = 20;
};

struct Reach {
  uint32_t cases = 0;
  // Tokens cached when the first step of a case was compared: the first prompt, or 0.
  std::multiset<uint32_t> contexts;
  using Shape = std::tuple<uint32_t, uint32_t, uint32_t>;  // group, head_dim, block size
  std::set<Shape> shapes, long_shapes;                     // long: of 2,049 tokens and more
  uint32_t runs = 0;                                       // of 300 single tokens and more
  uint32_t runs_from_nothing = 0;
  uint32_t forks = 0, second_prompts = 0;
  // Cuts after which steps were compared, by where they fell; refused ones, followed by steps too.
  uint32_t cuts_to_nothing = 0, cuts_in_prompt = 0, cuts_in_answer = 0, refused_cuts = 0;

  static constexpr uint32_t kRun = 300, kLong = 2049;
  // Lengths that blocks, chunks and kernels are multiples of, and their neighbours.
  static const std::vector<uint32_t>& boundaries();

  uint32_t n_long() const;
  std::string text() const;
  // What is missing of `demand`, or nothing.
  std::string shortfall(const Demand& demand) const;
};

}  // namespace kvasir::oracle
