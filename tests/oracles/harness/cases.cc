// See cases.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/cases.h"

#include <cstdlib>

namespace kvasir::oracle {
namespace {

// What takes long: prefill grows with the square of the context.
bool is_long(uint32_t index) { return index % 24 == 5 || index % 24 == 10 || index % 24 == 16; }

Shape make_shape(uint32_t index, uint32_t n_layers, Random& random) {
  Shape out;
  const uint32_t group = std::vector<uint32_t>{1, 4, 8}[index % 3];
  out.heads.n_kv_heads = 1 + random.below(is_long(index) && group > 1 ? 1 : 2);
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
  const std::vector<uint32_t> edges = {0,
                                       1,
                                       15,
                                       16,
                                       17,
                                       b - 1,
                                       b,
                                       b + 1,
                                       127,
                                       128,
                                       129,
                                       full - 1,
                                       full,
                                       full + 1,
                                       forced + full - 1,
                                       forced + full,
                                       forced + full + 1,
                                       forced + full + b,
                                       forced + full + 2 * b + 1};
  if (of.index % 72 == 5) return 4097;
  if (is_long(of.index)) return 1024 + random.below(1500);
  if (random.one_in(3)) return random.one_of(edges);
  return forced + full + random.below(8 * b);
}

void make_script(Case& of, Random& random, const CaseOptions& options) {
  using Kind = Action::Kind;
  const auto some = [&] { return of.context > 1000 ? 1 + random.below(2) : 1 + random.below(12); };
  if (of.context > 0) of.script.push_back({Kind::kPrompt, 0, of.context});
  if (of.index % 40 == 3) {
    of.script.push_back({Kind::kDecode, 0, 300});
    return;
  }
  of.script.push_back({Kind::kDecode, 0, some()});
  if (options.second_prompts && random.one_in(6)) {
    of.script.push_back({Kind::kPrompt, 0, 1 + random.below(3 * of.cache.block_size)});
    of.script.push_back({Kind::kDecode, 0, some()});
  }
  if (random.one_in(4)) {
    of.script.push_back({Kind::kFork, 0, 0});
    of.script.push_back({Kind::kDecode, 0, some()});
  }
  if (options.truncates && random.one_in(4)) {
    const bool inside = options.truncates_into_prompt && random.one_in(2);
    const uint32_t keep = inside ? of.context - of.context / 8 : of.context;
    of.script.push_back({Kind::kTruncate, 0, keep});
    of.script.push_back({Kind::kDecode, 0, some()});
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
  out.context = std::clamp(make_context(out, random), options.shortest, options.longest);
  out.chunk_size = out.context > 1000
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 24;
#else
  return 216;
#endif
}

}  // namespace kvasir::oracle
