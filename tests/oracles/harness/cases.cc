// See cases.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/cases.h"

#include <cstdlib>
#include <iterator>

namespace kvasir::oracle {
namespace {

// First prompts that every duel meets, one in kEvery cases: all of Reach::boundaries(), and some
// long ones. The order gives long ones every size of group, head and block.
constexpr uint32_t kEvery = 7, kFirst = 5;
constexpr uint32_t kContexts[] = {17,   4097, 0,    2049, 129,  128,  1023, 3001, 2177, 1025, 1,
                                  4096, 16,   1024, 127,  2048, 64,   2300, 15,   4095, 33,   2047,
                                  65,   2600, 32,   700,  63,   2111, 1500, 1111, 31};
constexpr uint32_t kNoContext = UINT32_MAX;
uint32_t fixed_context(uint32_t index) {
  if (index % kEvery != kFirst) return kNoContext;
  return index / kEvery < std::size(kContexts) ? kContexts[index / kEvery] : kNoContext;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool is_run(uint32_t index) { return index % 40 == 3; }  // of 300 tokens, one at a time
bool is_long(uint32_t context) { return context > 1000; }

Shape make_shape(uint32_t index, uint32_t n_layers, Random& random) {
  Shape out;
  const uint32_t group = std::vector<uint32_t>{1, 4, 8}[index % 3];
  const uint32_t context = fixed_context(index);
  // What takes long: prefill grows with the square of the context.
  const bool is_costly = context != kNoContext && is_long(context) && group > 1;
  out.heads.n_kv_heads = 1 + random.below(is_costly ? 1 : 2);
  out.heads.n_q_heads = group * out.heads.n_kv_heads;
  out.heads.head_dim = index / 3 % 2 ? 128 : 64;
  out.n_layers = n_layers;
  out.rope = !random.one_in(4);
  out.pairs = random.one_in(2) ? RopePairs::kHalves : RopePairs::kNeighbours;
  out.one_zero_key_in = random.one_in(3) ? 2 + random.below(4) : 0;
  return out;
}

uint32_t make_context(const Case& of, Random& random) {
  const uint32_t b = of.cache.block_size;
  const uint32_t forced = of.cache.sink_tokens + of.cache.window_tokens, full = of.budget_tokens;
  if (fixed_context(of.index) != kNoContext) return fixed_context(of.index);
  if (is_run(of.index) && of.index % 80 == 43) return 0;
  if (random.one_in(3))
    return random.one_of(std::vector<uint32_t>{b - 1, b, b + 1, full - 1, full, full + 1,
                                               forced + full - 1, forced + full, forced + full + 1,
                                               forced + full + b, forced + full + 2 * b + 1});
  return forced + full + random.below(8 * b);
}

// Where a sequence of `size` tokens, the last prompt of which ends at `prompt_end`, is cut.
uint32_t make_cut(const Case& of, uint32_t prompt_end, uint32_t size, Random& random) {
  const uint32_t b = of.cache.block_size, context = of.context;
  std::vector<uint32_t> places = {prompt_end, prompt_end + (size - prompt_end) / 2, size - 1};
  if (random.one_in(2))
    places = {context - context / 8, context - context / 8, context / 2, context / b * b, 0, 1};
  return std::min(random.one_of(places), size - 1);
}

void make_script(Case& of, Random& random, const CaseOptions& options) {
  using Kind = Action::Kind;
  const bool fixed = fixed_context(of.index) != kNoContext, all = fixed && of.context >= 1000;
  uint32_t size = 0, prompt_end = 0;  // of the first sequence
  const auto add = [&](Kind kind, uint32_t n) {
    of.script.push_back({kind, 0, n});
    if (kind == Kind::kPrompt) prompt_end = size += n;
    if (kind == Kind::kDecode) size += n;
    if (kind == Kind::kTruncate) size = n, prompt_end = std::min(prompt_end, n);
  };
  const auto answer = [&] {
    add(Kind::kDecode, is_long(of.context) ? 1 + random.below(2) : 1 + random.below(12));
  };
  const auto ask = [&] { add(Kind::kPrompt, 1 + random.below(3 * of.cache.block_size)); };
  if (of.context > 0) add(Kind::kPrompt, of.context);
  if (is_run(of.index)) {
    add(Kind::kDecode, 300);
    add(Kind::kFork, 0);
    answer();
    add(Kind::kTruncate, of.index % 3 ? size - 150 : of.context + 200);
    add(Kind::kDecode, 120);
    return;
  }
  answer();
  if (options.second_prompts && random.one_in(6)) {
    ask();
    answer();
  }
  if (all || random.one_in(4)) {
    add(Kind::kFork, 0);
    answer();
  }
  if (all || random.one_in(3)) {
    add(Kind::kTruncate, make_cut(of, prompt_end, size, random));
    if (options.second_prompts && random.one_in(3)) ask();
    answer();
  }
}

}  // namespace

Case make_case(uint32_t index, const CaseOptions& options) {
  Case out;
  out.index = index;
  out.seed = 77 + index;
  Random random(out.seed);
  out.shape = make_shape(index, options.n_layers, random);
  out.cache.block_size = std::vector<uint32_t>{16, 32, 64, 128}[index / 6 % 4];
  out.cache.sink_tokens = random.one_of(std::vector<uint32_t>{0, 1, 4, 16, 17, 40});
  out.cache.window_tokens = random.one_of(std::vector<uint32_t>{0, 1, 8, 31, 64, 100});
  out.budget_tokens = 1 + random.below(5 * out.cache.block_size);
  out.context = make_context(out, random);
  if (fixed_context(index) != kNoContext && out.context < 200)  // or nothing is left out
    out.budget_tokens = 1 + random.below(out.context + 1);
  if (is_run(index)) out.budget_tokens = std::min(out.budget_tokens, 60u);  // less than the answer
  out.chunk_size = is_long(out.context)
                       ? 256 + random.below(512)
                       : random.one_of(std::vector<uint32_t>{1, 7, 16, 64, 100, 512});
  make_script(out, random, options);
  return out;
}

std::string Case::text() const {
  const auto number = [](uint32_t x) { return std::to_string(x); };
  std::string out = "case " + number(index) + ": " + number(shape.heads.n_q_heads) + "/" +
                    number(shape.heads.n_kv_heads) + " heads of " + number(shape.heads.head_dim) +
                    (shape.rope ? "" : " without RoPE") + ", blocks of " +
                    number(cache.block_size) + ", sink " + number(cache.sink_tokens) + ", window " +
                    number(cache.window_tokens) + ", budget " + number(budget_tokens) +
                    ", chunks of " + number(chunk_size) + ", script";
  for (const Action& action : script) {
    const char* names[] = {" prompt", " decode", " fork", " truncate"};
    out += names[static_cast<size_t>(action.kind)] + std::string(":") + number(action.n);
  }
  return out;
}

uint32_t case_count() {
  if (const char* set = std::getenv("KVASIR_ORACLE_CASES"))
    return static_cast<uint32_t>(std::strtoul(set, nullptr, 10));
  return kSanitized ? 24 : 216;
}

bool are_cases_reduced() { return kSanitized || std::getenv("KVASIR_ORACLE_CASES"); }

}  // namespace kvasir::oracle
