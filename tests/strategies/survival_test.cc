// What every strategy survives: batches of unlike sequences, prompts in chunks of any size, saving
// and loading, forks, cuts, and a generation longer than all of its budget.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/strategies/table.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

// Feeds tokens [first, last) of a generation, wherever the sequence stands.
Logits feed_span(Engine& engine, SequenceId seq, uint32_t first, uint32_t last, uint32_t path = 0) {
  Logits out;
  for (uint32_t i = first; i < last; ++i) out.push_back(decode(engine, seq, token_at(i, path)));
  return out;
}
void check_bits(const Logits& got, const Logits& want) {
  INFO("largest difference: " << max_difference(got, want));
  CHECK(got == want);
}
void check_sound(const Engine& engine) {
  CHECK(engine.prefill_engagement().fallbacks == 0);
  CHECK(engine.decode_engagement().fallbacks == 0);
}

std::string chunk(uint32_t n) { return " cache.chunk_size=" + std::to_string(n); }

}  // namespace

TEST_SUITE_BEGIN("strategies/survival");

TEST_CASE("a batch of sequences of unlike lengths is each of them alone") {
  constexpr uint32_t kLengths[] = {0, 1, 9, 40, 100};  // none, one token, one block to many
  constexpr uint32_t kSteps = 16;
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    EngineOptions options;
    options.max_sequences = std::size(kLengths);
    const auto together = bench.engine(strategy_of(entry), options);
    std::vector<SequenceId> ids;
    Logits got[std::size(kLengths)];
    for (const uint32_t n : kLengths) {
      ids.push_back(together->open());
      if (n > 0) prefill(*together, ids.back(), some_tokens(n, n));
    }
    for (uint32_t i = 0; i < kSteps; ++i) {
      std::vector<Engine::DecodeItem> items;
      for (uint32_t s = 0; s < ids.size(); ++s) items.push_back({ids[s], token_at(i, s)});
      std::vector<float> logits(ids.size() * 300);
      together->decode(items, logits);
      for (uint32_t s = 0; s < ids.size(); ++s)
        got[s].emplace_back(logits.begin() + s * 300, logits.begin() + (s + 1) * 300);
    }
    check_sound(*together);
    const auto alone = bench.engine(strategy_of(entry));
    for (size_t s = ids.size(); s-- > 0;) {  // the other way round: ids are other ones
      CAPTURE(kLengths[s]);
      const auto seq = alone->open();
      if (kLengths[s] > 0) prefill(*alone, seq, some_tokens(kLengths[s], kLengths[s]));
      check_bits(got[s], feed_span(*alone, seq, 0, kSteps, static_cast<uint32_t>(s)));
      alone->close(seq);
    }
  }
}

namespace {

constexpr uint32_t kChunked = 90, kWhole = 128;  // tokens of a prompt; a chunk that holds it

// Logits after a prompt and n_decoded tokens.
Logits chunked(const Entry& entry, const std::string& settings, uint32_t n_decoded) {
  Bench bench(8, 2, entry.head_dim);
  const auto engine = bench.engine(strategy_of(entry, settings));
  const auto seq = engine->open();
  Logits out{prefill(*engine, seq, some_tokens(kChunked, 4))};
  for (auto& logits : feed_span(*engine, seq, 0, n_decoded)) out.push_back(std::move(logits));
  check_sound(*engine);
  return out;
}

}  // namespace

TEST_CASE("a prompt may come in chunks of any size") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    const uint32_t n_decoded = 8;
    const Logits whole = chunked(entry, chunk(kWhole), n_decoded);
    for (const uint32_t n : {1u, 2u, 3u, 5u, 7u, 16u, 31u}) {
      if ((few_cases() || entry.is_variant) && n != 1 && n != 7) continue;
      CAPTURE(n);
      if (entry.slice.empty()) {
        check_bits(chunked(entry, chunk(n), n_decoded), whole);
        continue;
      }
      // A slice shares a choice, by definition of the method, and none is larger than its chunk.
      const std::string slice = " " + entry.slice + "=" + std::to_string(n);
      const Logits sliced = chunked(entry, chunk(kWhole) + slice, n_decoded);
      check_bits(chunked(entry, chunk(n) + slice, n_decoded), sliced);
      check_bits(chunked(entry, chunk(3 * n) + slice, n_decoded), sliced);
      check_bits(
          chunked(entry, chunk(n) + " " + entry.slice + "=" + std::to_string(kWhole), n_decoded),
          sliced);
    }
  }
}

TEST_CASE("a prompt may come in chunks of every size, for strategies of each kind") {
  // They choose blocks, tokens and evicted ones, by the whole prompt, its end, or step by step.
  const std::set<std::string> kinds = {
      "quest", "ktransformers_preselect", "snapkv", "h2o, in tokens", "infinigen", "magicpig",
      "infllm"};
  size_t n_entries = 0;
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (!kinds.contains(entry.name)) continue;
    ++n_entries;
    // Of one token, it is in no chunk's way.
    const std::string slice = entry.slice.empty() ? "" : " " + entry.slice + "=1";
    const Logits whole = chunked(entry, chunk(kWhole) + slice, 3);
    for (uint32_t n = 1; n <= kChunked; n += few_cases() ? 13 : 1) {
      CAPTURE(n);
      check_bits(chunked(entry, chunk(n) + slice, 3), whole);
    }
  }
  CHECK(n_entries == kinds.size());
}

TEST_CASE("a sequence saved in mid-generation goes on in another engine, bit for bit") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    for (const uint32_t n_decoded : {0u, 13u}) {
      if (entry.is_variant && n_decoded == 0) continue;
      CAPTURE(n_decoded);
      const auto first = bench.engine(strategy_of(entry)),
                 second = bench.engine(strategy_of(entry));
      second->close(second->open());  // the copy has an id of its own
      const auto seq = first->open();
      prefill(*first, seq, some_tokens(70, 5));
      feed_span(*first, seq, 0, n_decoded);
      const auto bytes = first->save(seq);
      const auto copy = second->load(bytes, "saved");
      CHECK(second->kv_bytes(copy) == first->kv_bytes(seq));
      CHECK(feed_span(*second, copy, n_decoded, n_decoded + 30) ==
            feed_span(*first, seq, n_decoded, n_decoded + 30));
      const auto turn = some_tokens(20, 6);
      CHECK(prefill(*second, copy, turn) == prefill(*first, seq, turn));
      CHECK(feed_span(*second, copy, 50, 60) == feed_span(*first, seq, 50, 60));
      CHECK(second->save(copy) == first->save(seq));
      check_sound(*second);
    }
  }
}

TEST_CASE("a sequence saved when its prompt was stopped reads the rest in another engine") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const auto first = bench.engine(strategy_of(entry)), second = bench.engine(strategy_of(entry));
    const auto seq = first->open();
    const auto prompt = some_tokens(70, 5);
    Engine::PrefillHooks stop;  // after the first chunk of which some of the last queries are
    stop.progress = [](uint32_t done, uint32_t) { return done < 64; };
    REQUIRE(first->prefill(seq, prompt, {}, stop) == 64);
    const auto copy = second->load(first->save(seq), "saved");
    const auto rest = std::span(prompt).subspan(64);
    CHECK(prefill(*second, copy, rest) == prefill(*first, seq, rest));
    CHECK(feed_span(*second, copy, 0, 20) == feed_span(*first, seq, 0, 20));
    CHECK(second->save(copy) == first->save(seq));
    check_sound(*second);
  }
}

TEST_CASE("a fork that diverges is a sequence of its own, and leaves its parent alone") {
  constexpr uint32_t kFork = 9, kEnd = 40;
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const auto engine = bench.engine(strategy_of(entry)), fresh = bench.engine(strategy_of(entry));
    const auto prompt = some_tokens(70, 7);
    const auto parent = engine->open();
    prefill(*engine, parent, prompt);
    feed_span(*engine, parent, 0, kFork);
    const auto child = engine->fork(parent);
    Logits of_parent, of_child;  // turn by turn: what they share must not be written
    for (uint32_t i = kFork; i < kEnd; ++i) {
      of_child.push_back(decode(*engine, child, token_at(i, 1)));
      of_parent.push_back(decode(*engine, parent, token_at(i)));
    }
    for (const uint32_t path : {0u, 1u}) {
      CAPTURE(path);
      const auto seq = fresh->open();
      prefill(*fresh, seq, prompt);
      feed_span(*fresh, seq, 0, kFork);
      CHECK(feed_span(*fresh, seq, kFork, kEnd, path) == (path ? of_child : of_parent));
    }
    engine->close(parent);
    feed_span(*engine, child, kEnd, kEnd + 5, 1);
    check_sound(*engine);
  }
}

TEST_CASE("a cut sequence goes on as a fresh one, where its method can undo what it did") {
  constexpr uint32_t kPrompt = 70, kDecoded = 21;
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    INFO(entry.why);
    for (const uint32_t keep : {kPrompt + 11, kPrompt + 2, 61u, 8u, 0u}) {
      if (entry.is_variant && keep != kPrompt + 11 && keep != 61) continue;
      CAPTURE(keep);
      const auto engine = bench.engine(strategy_of(entry)),
                 fresh = bench.engine(strategy_of(entry));
      const auto all = some_tokens(kPrompt, 8);
      const auto seq = engine->open(), same = fresh->open();
      prefill(*engine, seq, all);
      feed_span(*engine, seq, 0, kDecoded);
      const bool in_answer = keep >= kPrompt;
      const bool undone =
          entry.rewinds == Rewinds::kAnywhere || (entry.rewinds == Rewinds::kDecoded && in_answer);
      if (undone) {
        engine->truncate(seq, keep);
      } else {
        try {
          engine->truncate(seq, keep);
        } catch (const Error& e) {
          CHECK(std::string(e.what()).find("evicted") != std::string::npos);
          continue;
        }
      }
      CHECK(engine->kv_len(seq) == keep);
      const uint32_t n_prompt = std::min(keep, kPrompt);
      if (n_prompt > 0) prefill(*fresh, same, {all.data(), n_prompt});
      feed_span(*fresh, same, 0, keep - n_prompt);
      const Logits got = feed_span(*engine, seq, 100, 130),
                   want = feed_span(*fresh, same, 100, 130);
      if (undone) check_bits(got, want);
      check_sound(*engine);
    }
  }
}

TEST_CASE("300 tokens one at a time: no fault, no fallback, and the strategy is at work") {
  constexpr uint32_t kTokens = 300;
  KVASIR_FOR_EACH_ENTRY(entry) {
    for (const uint32_t n_prompt : {0u, 40u}) {
      if (entry.is_variant && n_prompt != (entry.engages == Engages::kSelects ? 0 : 40)) continue;
      CAPTURE(n_prompt);
      Bench bench(8, 2, entry.head_dim);
      const auto engine = bench.engine(strategy_of(entry));
      const auto seq = engine->open();
      if (n_prompt > 0) prefill(*engine, seq, some_tokens(n_prompt, 9));
      for (const auto& logits : feed_span(*engine, seq, 0, kTokens))
        REQUIRE(max_difference(logits, logits) == 0);  // no NaN
      const Engagement& e = engine->decode_engagement();
      CHECK(engine->kv_len(seq) == n_prompt + kTokens);
      CHECK(e.steps == kTokens);
      for (const std::string& line : bench.log) CHECK(line.find("attending densely") == line.npos);
      CHECK(e.fallbacks == 0);
      if (entry.engages == Engages::kNever) CHECK(e.tokens_attended == e.tokens_considered);
      if (entry.engages == Engages::kSelects) CHECK(e.selections > 0);
      if (entry.engages == Engages::kSelects || n_prompt > 0)
        CHECK((e.tokens_attended < e.tokens_considered) == (entry.engages != Engages::kNever));
    }
  }
}
