// Models whose layers see a sliding window: the numbers of a double-precision loop over all keys,
// memory for the window alone, and strategies that choose in the other layers only.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/model/layers/architecture.h"
#include "core/model/synthetic/random_model.h"
#include "tests/core/runtime/support.h"
#include "tests/support/dense_loop.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kWindow = 20, kBlock = 8, kVocab = 300, kKvHeads = 2, kDim = 16;
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\n";
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";

// gemma3: the last of six layers sees all; gemma2: every second one does; llama: none.
class SlidingModel {
 public:
  explicit SlidingModel(const std::string& family)
      : path_(dir_.path(family)),
        file_((write_random_model(spec(family), path_), GgufFile::open(path_))),
        model_(Model::load(file_, test_pool(), {Compute::kF32, 512})) {}
  const Model& model() const { return *model_; }

 private:
  static RandomModelSpec spec(const std::string& family) {
    RandomModelSpec spec;
    spec.name = spec.architecture = family;
    spec.n_layers = family == "gemma3" ? 6 : 3;
    spec.d_model = 64;
    spec.d_ff = 96;
    spec.n_q_heads = 4;
    spec.n_kv_heads = kKvHeads;
    spec.head_dim = kDim;
    spec.vocab_size = kVocab;
    spec.context_length = 4096;
    spec.qk_norm = architecture(family).qk_norm;
    spec.rope_base = family == "gemma3" ? 1e6f : 1e4f;
    spec.softmax_softcap = family == "gemma2" ? 2.0f : 0.0f;
    spec.type = GgmlType::kF32;
    spec.norm_spread = 0.3f;
    spec.sliding_window = kWindow;
    return spec;
  }
  TempDir dir_;
  std::string path_;
  GgufFile file_;
  std::unique_ptr<Model> model_;
};

std::string pieces_of(uint32_t n) { return kCache + "chunk_size = " + std::to_string(n) + "\n"; }

// After the prompt and after each of n_decoded tokens.
Logits answer(Engine& engine, SequenceId seq, uint32_t n_prompt, uint32_t n_decoded) {
  Logits out{prefill(engine, seq, some_tokens(n_prompt, 1))};
  for (uint32_t i = 0; i < n_decoded; ++i) out.push_back(decode(engine, seq, token_at(i)));
  return out;
}

// The strategies that keep state of every kind: none, records, plans, keys before RoPE, queries of
// the layer before.
const std::vector<std::string> kChoosing = {
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 16\n"
    "[representative]\nplugin = 'kvasir.minmax'\n",
    "[selector]\nplugin = 'kvasir.h2o'\nbudget_tokens = 24\n",
    "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 30\n",
    "bypass = false\n"
    "[selector]\nplugin = 'kvasir.infllm'\ntopk = 2\nexc_block_size = 16\n"
    "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\nrepr_topk = 2\n",
    "[selector]\nplugin = 'kvasir.infinigen'\nbudget_tokens = 12\n",
    "positions = 'slot'\n[selector]\nplugin = 'kvasir.streaming'\n"};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/sliding_window");

TEST_CASE("logits are those of attention over all keys in the window, whatever the pieces") {
  for (const std::string family : {"gemma3", "gemma2", "llama"}) {
    CAPTURE(family);
    const SlidingModel sliding(family);
    for (const uint32_t n_prompt : {1u, kWindow - 1, kWindow, kWindow + 1, 75u}) {
      CAPTURE(n_prompt);
      DenseLoop loop(sliding.model());
      const auto of_prompt = loop.step(some_tokens(n_prompt, 1));
      Logits want{{of_prompt.end() - kVocab, of_prompt.end()}};
      for (uint32_t i = 0; i < 40; ++i) {
        const TokenId token = token_at(i);
        want.push_back(loop.step(std::vector<TokenId>{token}));
      }
      Logits first;
      for (const uint32_t piece : {3u, 16u, 100u}) {
        CAPTURE(piece);
        Bench bench;
        const auto engine = bench.engine(sliding.model(), pieces_of(piece) + kDense);
        const Logits got = answer(*engine, engine->open(), n_prompt, 40);
        CHECK(relative_difference(got, want) < 2e-5);
        if (first.empty()) first = got;
        CHECK(got == first);
      }
    }
  }
}

TEST_CASE("a backend that cannot limit how far a query sees is refused") {
  const SlidingModel sliding("gemma3");
  Bench bench;
  const std::string backend = "[attention]\nplugin = 'kvasir.test.bad_attention'\n";
  CHECK(error_of([&] {
          bench.engine(sliding.model(), kCache + kDense + backend);
        }).find("kvasir.test.bad_attention cannot limit how far a query sees") == 0);
  bench.engine(kCache + kDense + backend);  // a model without windows
}

TEST_CASE("a layer holds its window, and one block more than the next token sees") {
  const SlidingModel sliding("gemma3");
  Bench bench;
  const auto engine = bench.engine(sliding.model(), pieces_of(32) + kDense);
  const SequenceId seq = engine->open();
  answer(*engine, seq, 150, 50);
  const uint64_t block_bytes = kBlock * kKvHeads * 2 * kDim * sizeof(float);
  // 200 tokens are 25 blocks; the next token sees those from 181 on, in block 22, and 21 is kept.
  CHECK(engine->kv_bytes(seq) == block_bytes * (25 + 5 * 4));
  // A plan counts the window, a piece of 32 and two blocks: 9 of the 25.
  CHECK(engine->sequence_bytes(0, 200) == block_bytes * (25 + 5 * 9));
}

TEST_CASE("sequences fork, are saved and loaded, and cut as far as the window is there") {
  const SlidingModel sliding("gemma3");
  Bench bench;
  EngineOptions options;
  options.max_sequences = 8;
  for (const std::string storage :
       {"",
        "[storage]\nplugin = 'kvasir.tiered'\ntype_k = 'f32'\ntype_v = 'f32'\n"
        "cached_blocks = 2\n"}) {
    CAPTURE(storage);
    const auto engine = bench.engine(sliding.model(), pieces_of(32) + kDense + storage, options);
    const SequenceId seq = engine->open();
    answer(*engine, seq, 150, 10);
    const SequenceId fork = engine->fork(seq);
    const SequenceId loaded = engine->load(engine->save(seq), "saved");
    Logits want;
    for (uint32_t i = 10; i < 40; ++i) want.push_back(decode(*engine, seq, token_at(i)));
    for (const SequenceId other : {fork, loaded}) {
      Logits got;
      for (uint32_t i = 10; i < 40; ++i) got.push_back(decode(*engine, other, token_at(i)));
      CHECK(got == want);
    }
    for (uint32_t n_cut = 1; n_cut <= kBlock; ++n_cut) {  // of 190 tokens
      const SequenceId cut = engine->fork(seq);
      engine->truncate(cut, 190 - n_cut);
      Logits again;
      for (uint32_t i = 40 - n_cut; i < 40; ++i) again.push_back(decode(*engine, cut, token_at(i)));
      CHECK(again == Logits(want.end() - n_cut, want.end()));
      engine->close(cut);
    }
    CHECK(error_of([&] {
            engine->truncate(seq, 100);
          }).find("cannot truncate to 100 tokens: layer 0 has a sliding window of 20 tokens") == 0);
    CHECK(engine->kv_len(seq) == 190);
    engine->truncate(seq, 0);
    CHECK(answer(*engine, seq, 60, 5) == answer(*engine, engine->open(), 60, 5));
    CHECK(engine->cannot_recompute(0).find("sliding window") != std::string::npos);
  }
}

TEST_CASE("tokens to verify are those fed one at a time, and rejected ones leave the window") {
  const SlidingModel sliding("gemma3");
  Bench bench;
  EngineOptions options;
  options.max_step_tokens = 64;
  const auto engine = bench.engine(sliding.model(), kCache + kDense, options);
  const SequenceId seq = engine->open(), single = engine->open();
  answer(*engine, seq, 61, 0);
  answer(*engine, single, 61, 0);
  const std::vector<TokenId> drafts = {5, 17, 250, 3, 90, 11, 12, 33, 4, 8, 15, 16};
  std::vector<float> logits(drafts.size() * kVocab);
  const StepItem item{.seq = seq, .tokens = drafts, .logits = logits};
  REQUIRE(engine->step({&item, 1})[0].text().empty());
  for (size_t i = 0; i < 3; ++i) {
    const auto want = decode(*engine, single, drafts[i]);
    CHECK(std::equal(want.begin(), want.end(), logits.begin() + static_cast<long>(i * kVocab)));
  }
  engine->accept(seq, 2);
  for (uint32_t i = 0; i < 30; ++i)
    CHECK(decode(*engine, seq, token_at(i)) == decode(*engine, single, token_at(i)));
}

TEST_CASE("strategies choose in the layers that see all, and the window counts apart") {
  for (const std::string family : {"gemma3", "llama"}) {
    CAPTURE(family);
    const SlidingModel sliding(family);
    const uint64_t n_sliding = sliding.model().shape().n_sliding_layers();
    const uint64_t n_global = sliding.model().shape().n_layers - n_sliding;
    for (const std::string& strategy : kChoosing) {
      CAPTURE(strategy);
      Bench bench;
      const auto engine = bench.engine(sliding.model(), pieces_of(40) + strategy);
      const auto dense = bench.engine(sliding.model(), pieces_of(40) + kDense);
      constexpr uint32_t kPrompt = 150, kDecoded = 20;
      const Logits got = answer(*engine, engine->open(), kPrompt, kDecoded);
      const Logits all = answer(*dense, dense->open(), kPrompt, kDecoded);
      const Engagement& e = engine->decode_engagement();
      CHECK(e.sliding_tokens == kDecoded * kKvHeads * kWindow * n_sliding);
      uint64_t cached = 0;
      for (uint32_t i = 1; i <= kDecoded; ++i) cached += kPrompt + i;
      CHECK(e.tokens_considered == cached * kKvHeads * n_global);
      CHECK(e.fallbacks == 0);
      if (n_global == 0) {  // nothing is left to choose
        CHECK(relative_difference(got, all) < 1e-5);
      } else {
        CHECK(e.tokens_attended < e.tokens_considered);
        CHECK(relative_difference(got, all) > 1e-4);
      }
      CHECK(e.kv_bytes_read == (e.tokens_attended + e.sliding_tokens) * 2 * kDim * sizeof(float));
    }
  }
}

TEST_CASE("a budget that covers everything is dense, bit for bit") {
  const SlidingModel sliding("gemma3");
  Bench bench;
  const std::string more =
      "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 4096\n"
      "[representative]\nplugin = 'kvasir.minmax'\n";
  const auto engine = bench.engine(sliding.model(), kCache + more);
  const auto dense = bench.engine(sliding.model(), kCache + kDense);
  CHECK(answer(*engine, engine->open(), 150, 20) == answer(*dense, dense->open(), 150, 20));
}
