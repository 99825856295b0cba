// streaming and duoattention in the step loop: prompts read sparsely, and memory that stays
// bounded.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/prescribed_run.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSink = 4, kWindow = 10, kChunk = 24, kSlice = 16, kPrompt = 100, kDecoded = 20;
const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 10\nchunk_size = 24\n"
    "[storage]\ntype_k = 'f32'\ntype_v = 'f32'\n";
const std::string kStreaming = "[selector]\nplugin = 'kvasir.streaming'\n";

// Where the slice begins that a token of the prompt is read in: 16 tokens and 8 of each chunk.
uint32_t slice_begin(uint32_t token, uint32_t slice) {
  const uint32_t chunk = token / kChunk * kChunk;
  return chunk + (token - chunk) / slice * slice;
}

// Sink, what the first query of the slice sees of the last tokens, and what came since.
std::vector<uint32_t> near(uint32_t query, uint32_t window, uint32_t slice = kSlice) {
  const uint32_t first = query < kPrompt ? slice_begin(query, slice) : query;
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t <= query; ++t)
    if (t < kSink || t + window > first) out.push_back(t);
  return out;
}
std::vector<uint32_t> all(uint32_t query) {
  std::vector<uint32_t> out(query + 1);
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

void generate(Prescribed& given, const std::string& toml) {
  const auto engine = given.engine(toml);
  const auto seq = engine->open();
  Prescribed::prompt(*engine, seq, kPrompt);
  for (uint32_t i = 0; i < kDecoded; ++i) Prescribed::decode(*engine, seq);
  CHECK(engine->prefill_engagement().fallbacks == 0);
  CHECK(engine->decode_engagement().fallbacks == 0);
}

// Of the sequence, after each chunk and each token.
std::vector<uint64_t> kv_bytes(const std::string& options) {
  Prescribed given;
  const auto engine = given.engine(kCache + kStreaming + options);
  const auto seq = engine->open();
  std::vector<TokenId> tokens(kPrompt);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<uint64_t> out;
  Engine::PrefillHooks hooks;
  hooks.progress = [&](uint32_t, uint32_t) {
    out.push_back(engine->kv_bytes(seq));
    return true;
  };
  engine->prefill(seq, tokens, {}, hooks);
  for (uint32_t i = 0; i < kDecoded; ++i) {
    Prescribed::decode(*engine, seq);
    out.push_back(engine->kv_bytes(seq));
  }
  return out;
}

TEST_SUITE("plugins/selector/streaming") {
  TEST_CASE("a slice of the prompt sees sink, window and itself; an answer sink and window") {
    for (const std::string evict : {"", "evict = true\n"})
      for (const auto& [budget, slice] : {std::pair{0u, kSlice}, {7u, kSlice}, {0u, 1u}}) {
        CAPTURE(evict);
        CAPTURE(budget);
        CAPTURE(slice);
        Prescribed given;
        generate(given, kCache + kStreaming + evict + "budget_tokens = " + std::to_string(budget) +
                            "\nprefill_select_tokens = " + std::to_string(slice) + "\n");
        const double worst = given.worst_output(
            kPrompt, kChunk, kDecoded, [&, b = budget, s = slice](uint32_t, uint32_t, uint32_t t) {
              return near(t, kWindow + b, s);
            });
        CHECK(worst < 1e-5);
      }
  }

  TEST_CASE("prompts are dense by default, evicted or not") {
    for (const std::string evict : {"", "evict = true\n"}) {
      Prescribed given;
      generate(given, kCache + kStreaming + evict);
      const double worst =
          given.worst_output(kPrompt, kChunk, kDecoded, [](uint32_t, uint32_t, uint32_t query) {
            return query < kPrompt ? all(query) : near(query, kWindow);
          });
      CHECK(worst < 1e-5);
    }
  }

  TEST_CASE("streaming heads alone read prompts sparsely") {
    const TempDir dir;
    const std::string file = dir.write("heads.tsv", "0 1\n1 0\n1 1\n");
    for (const std::string evict : {"", "evict = true\n"}) {
      Prescribed given;
      generate(given, kCache + "[selector]\nplugin = 'kvasir.duoattention'\nhead_file = '" + file +
                          "'\nsparsity = 0.34\nprefill_select_tokens = 16\n" + evict);
      const double worst = given.worst_output(
          kPrompt, kChunk, kDecoded, [](uint32_t layer, uint32_t kv_head, uint32_t query) {
            const bool streams = (layer == 0 && kv_head == 0) || (layer == 1 && kv_head == 1);
            return streams ? near(query, kWindow) : all(query);
          });
      CHECK(worst < 1e-5);
    }
  }

  TEST_CASE("memory is that of sink and window: after the prompt, or from its first chunk on") {
    const uint64_t token_bytes =
        uint64_t{Prescribed::kLayers} * Prescribed::kKvHeads * Prescribed::kDim * 2 * sizeof(float);
    // Whole blocks hold sink, window and, packed or not yet, a block on either edge.
    const uint64_t bound = (kSink + kWindow + 3 * 8) * token_bytes;
    const uint64_t whole = kPrompt * token_bytes;
    const auto kept = kv_bytes(""), evicted = kv_bytes("evict = true\n"),
               sliced = kv_bytes("evict = true\nprefill_select_tokens = 16\n");
    const size_t n_chunks = (kPrompt + kChunk - 1) / kChunk;
    REQUIRE(kept.size() == n_chunks + kDecoded);
    CHECK(kept.back() >= whole);
    for (size_t i = 0; i + 1 < n_chunks; ++i) CHECK(evicted[i] == kept[i]);
    for (size_t i = n_chunks - 1; i < kept.size(); ++i) CHECK(evicted[i] <= bound);
    for (size_t i = 0; i < kept.size(); ++i) CHECK(sliced[i] <= bound);
  }
}

}  // namespace
