// See reach.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/reach.h"

#include <iterator>

namespace kvasir::oracle {
namespace {

std::string number(uint64_t x) { return std::to_string(x); }

// "1 4 8" of what stands at one place of the shapes.
template <size_t kPlace>
std::string list(const std::set<Reach::Shape>& shapes) {
  std::set<uint32_t> seen;
  for (const Reach::Shape& shape : shapes) seen.insert(std::get<kPlace>(shape));
  std::string out;
  for (const uint32_t x : seen) out.append(out.empty() ? "" : " ").append(number(x));
  return out;
}

}  // namespace

const std::vector<uint32_t>& Reach::boundaries() {
  static const std::vector<uint32_t> all = {0,    1,    15,   16,   17,   31,   32,   33,
                                            63,   64,   65,   127,  128,  129,  1023, 1024,
                                            1025, 2047, 2048, 2049, 4095, 4096, 4097};
  return all;
}

uint32_t Reach::n_long() const {
  return static_cast<uint32_t>(std::distance(contexts.lower_bound(kLong), contexts.end()));
}

std::string Reach::text() const {
  std::string found;
  for (const uint32_t length : boundaries())
    if (contexts.count(length)) found.append(" ").append(number(length));
  const uint32_t longest = contexts.empty() ? 0 : *contexts.rbegin();
  return number(cases) + " cases, contexts up to " + number(longest) + " (" + number(n_long()) +
         " from " + number(kLong) + " on), among them" + found + "; " + number(shapes.size()) +
         " shapes of group " + list<0>(shapes) + ", head_dim " + list<1>(shapes) + ", block size " +
         list<2>(shapes) + "; " + number(runs) + " runs of " + number(kRun) + " single tokens (" +
         number(runs_from_nothing) + " from nothing); " + number(forks) +
         " forks; cuts: " + number(cuts_in_prompt) + " in the prompt, " + number(cuts_in_answer) +
         " in the answer, " + number(cuts_to_nothing) + " to nothing, " + number(refused_cuts) +
         " refused; " + number(second_prompts) + " second prompts";
}

std::string Reach::shortfall(const Demand& demand) const {
  std::string out;
  const auto want = [&](bool met, const std::string& what) {
    if (!met) out.append(out.empty() ? "" : ", ").append(what);
  };
  want(cases >= 200, "200 cases");
  for (const uint32_t length : boundaries())
    want(contexts.count(length) > 0, "a context of " + number(length));
  want(n_long() >= 8, "8 contexts from " + number(kLong) + " on");
  for (const uint32_t group : {1u, 4u, 8u})
    for (const uint32_t head_dim : {64u, 128u})
      for (const uint32_t block_size : demand.block_sizes)
        want(shapes.count({group, head_dim, block_size}) > 0,
             "group " + number(group) + " with head_dim " + number(head_dim) + " and blocks of " +
                 number(block_size));
  want(list<0>(long_shapes) == "1 4 8", "a long context with every group");
  want(list<1>(long_shapes) == "64 128", "a long context with every head_dim");
  want(list<2>(long_shapes) == list<2>(shapes), "a long context with every block size");
  want(runs >= 4, "4 runs of " + number(kRun) + " tokens");
  want(runs_from_nothing >= 1, "a run from an empty sequence");
  want(forks >= 20, "20 forks");
  want(cuts_in_prompt + refused_cuts >= 10, "10 cuts in a prompt, made or refused");
  want(cuts_in_prompt + cuts_in_answer + cuts_to_nothing >= 20, "20 cuts");
  want(cuts_in_answer >= 5, "5 cuts in an answer");
  want(second_prompts >= 10, "10 second prompts");
  return out;
}

}  // namespace kvasir::oracle
