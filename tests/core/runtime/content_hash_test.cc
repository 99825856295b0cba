// Blocks are named by what made their content: equal prefixes meet in storage, and nothing else
// does.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/content_hash.h"

#include <set>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8;
const Hash128 kRun = {3, 4};

// Tokens in pieces of the given sizes.
ContentHash named(const std::vector<TokenId>& tokens, std::vector<size_t> pieces,
                  const Hash128& run = kRun) {
  ContentHash content(run, kBlock);
  size_t at = 0;
  for (const size_t n : pieces) {
    content.append(std::span(tokens).subspan(at, n), static_cast<uint32_t>(n));
    at += n;
  }
  REQUIRE(at == tokens.size());
  return content;
}
Hash128 name(const ContentHash& content, uint32_t block) {
  REQUIRE(content.block(block) != nullptr);
  return *content.block(block);
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/content_hash");

TEST_CASE("equal tokens in equal pieces have equal names, and only full blocks have one") {
  const std::vector<TokenId> tokens = some_tokens(29);
  const ContentHash a = named(tokens, {16, 13}), b = named(tokens, {16, 13});
  for (uint32_t block = 0; block < 3; ++block) CHECK(name(a, block) == name(b, block));
  CHECK(a.block(3) == nullptr);
  CHECK(ContentHash().block(0) == nullptr);
}

TEST_CASE("whatever changes what was computed changes the name, from there on") {
  const std::vector<TokenId> tokens = some_tokens(32);
  const ContentHash plain = named(tokens, {32});
  for (uint32_t changed = 0; changed < 32; ++changed) {
    std::vector<TokenId> other = tokens;
    other[changed] += 1;
    const ContentHash content = named(other, {32});
    for (uint32_t block = 0; block < 4; ++block)
      CHECK((name(content, block) == name(plain, block)) == (block < changed / kBlock));
  }
  const ContentHash pieces = named(tokens, {16, 16}), later = named(tokens, {16, 9, 7});
  CHECK(name(pieces, 0) != name(plain, 0));
  CHECK(name(pieces, 1) == name(later, 1));
  CHECK(name(pieces, 2) != name(later, 2));
  for (const Hash128& run : {Hash128{3, 5}, Hash128{4, 4}, Hash128{4, 3}})
    CHECK(name(named(tokens, {32}, run), 0) != name(plain, 0));
  // Equal blocks one after the other: the name before counts.
  std::vector<TokenId> repeated(32, 7);
  std::set<Hash128> names;
  const ContentHash content = named(repeated, {32});
  for (uint32_t block = 0; block < 4; ++block) names.insert(name(content, block));
  CHECK(names.size() == 4);
}

TEST_CASE("what is tainted has no name; a cut at a block's end begins anew, one inside does not") {
  const std::vector<TokenId> tokens = some_tokens(40);
  const auto first = std::span(tokens);
  ContentHash content = named(tokens, {16, 24});
  const ContentHash whole = content;
  content.taint();
  content.append(first.first(8), 8);
  CHECK(content.block(5) == nullptr);
  CHECK(name(content, 4) == name(whole, 4));
  content.truncate(16);
  CHECK(content.n_tokens() == 16);
  CHECK(content.block(2) == nullptr);
  content.append(first.subspan(16), 24);
  for (uint32_t block = 0; block < 5; ++block) CHECK(name(content, block) == name(whole, block));
  content.truncate(19);
  content.append(first.subspan(19), 21);
  CHECK(name(content, 1) == name(whole, 1));
  CHECK(content.block(2) == nullptr);
  content.truncate(100);  // nothing to cut, still without a name
  content.append(first, 32);
  CHECK(content.block(2) == nullptr);
}

namespace {

// Three layers of 72 tokens in blocks of 8, in f32: so many bytes, and space for `more` blocks.
constexpr uint64_t kBlockBytes = 2 * 2 * 16 * sizeof(float) * kBlock;
constexpr uint32_t kPrompt = 72;
std::string toml(uint64_t n_blocks, const std::string& selector = "dense") {
  return "[cache]\nblock_size = 8\nchunk_size = 16\nwindow_tokens = 8\nsink_tokens = 0\n"
         "on_fault = 'fail'\n[selector]\nplugin = 'kvasir." +
         selector +
         "'\n[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f32'\ntype_v = 'f32'\nmax_bytes = " +
         std::to_string(n_blocks * kBlockBytes) + "\n";
}
// Of one sequence, its open block included.
constexpr uint64_t kOwn = 3 * (kPrompt / kBlock + 1);

// Whether the storage has space for what fn does.
template <class Fn>
bool fits(Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::kResource);
    return false;
  }
}

EngineOptions two() {
  EngineOptions options;
  options.max_sequences = 2;
  return options;
}

}  // namespace

TEST_CASE("two sequences with one prompt hold its blocks once, and each says what it would alone") {
  Bench bench;
  const auto alone = bench.engine(toml(10 * kOwn), two());
  const auto prompt = some_tokens(kPrompt, 3);
  const auto lone = alone->open();
  const auto want = prefill(*alone, lone, prompt);
  const auto next = decode(*alone, lone, 5), other = decode(*alone, lone, 9);
  // Space for one sequence, two open blocks per layer, and the chunk that is not sealed yet.
  const auto shared = bench.engine(toml(kOwn + 3 * 3), two());
  const auto a = shared->open(), b = shared->open();
  CHECK(prefill(*shared, a, prompt) == want);
  CHECK(prefill(*shared, b, prompt) == want);
  CHECK(decode(*shared, a, 5) == next);
  CHECK(decode(*shared, b, 5) == next);
  shared->close(a);
  CHECK(decode(*shared, b, 9) == other);
  shared->close(b);
  // All is free again: another prompt fits.
  const auto c = shared->open();
  prefill(*shared, c, some_tokens(kPrompt, 4));
  CHECK(bench.log.empty());
}

TEST_CASE("sequences that differ share what came before, and no more") {
  Bench bench;
  const auto prompt = some_tokens(kPrompt, 3);
  auto later = prompt, early = prompt;
  later[40] += 1;
  early[0] += 1;
  const auto runs = [&](uint64_t n_blocks, const std::vector<TokenId>& second) {
    const auto engine = bench.engine(toml(n_blocks), two());
    const auto a = engine->open(), b = engine->open();
    prefill(*engine, a, prompt);
    return fits([&] { prefill(*engine, b, second); });
  };
  const uint64_t full = 3 * kPrompt / kBlock, common = 3 * (40 / kBlock);
  CHECK(runs(2 * full - common, later));
  CHECK_FALSE(runs(2 * full - common - 1, later));
  CHECK(runs(2 * full, early));
  CHECK_FALSE(runs(2 * full - 1, early));
}

TEST_CASE("what was decoded, and prompts after it, are a sequence's own") {
  Bench bench;
  const auto engine = bench.engine(toml(10 * kOwn), two());
  const auto prompt = some_tokens(kPrompt, 3);
  const auto a = engine->open(), b = engine->open();
  for (const auto seq : {a, b}) {
    prefill(*engine, seq, prompt);
    for (uint32_t i = 0; i < 20; ++i) decode(*engine, seq, static_cast<TokenId>(i + 1));
  }
  // Cut and continued otherwise, neither sees what the other wrote.
  engine->truncate(b, kPrompt + 3);
  const auto fresh = bench.engine(toml(10 * kOwn), two());
  const auto twin = fresh->open();
  prefill(*fresh, twin, prompt);
  for (uint32_t i = 0; i < 3; ++i) decode(*fresh, twin, static_cast<TokenId>(i + 1));
  for (uint32_t i = 0; i < 20; ++i)
    CHECK(decode(*engine, b, static_cast<TokenId>(200 - i)) ==
          decode(*fresh, twin, static_cast<TokenId>(200 - i)));
}

TEST_CASE("prompts that are read sparsely, by slot or over evicted tokens keep to themselves") {
  Bench bench;
  const auto prompt = some_tokens(kPrompt, 3);
  const auto streaming = [&](const std::string& cache, const std::string& more, uint64_t n_blocks) {
    std::string text = toml(n_blocks, "streaming");
    text.insert(text.find("[selector]"), cache);
    text.insert(text.find("[storage]"), more);
    const auto engine = bench.engine(text, two());
    const auto a = engine->open(), b = engine->open();
    prefill(*engine, a, prompt);
    return fits([&] { prefill(*engine, b, prompt); });
  };
  CHECK(streaming("", "", kOwn + 9));  // a dense prompt is shared
  CHECK_FALSE(streaming("", "prefill_select_tokens = 16\n", kOwn + 9));
  CHECK_FALSE(streaming("positions = 'slot'\n", "", kOwn + 9));
}
