// kvasir.cuda on the emulation in a real engine: the numbers of kvasir.reference, strategy by
// strategy, and the same text of a trained model. Beside it, blocks and their summaries in the
// device's memory, also where that is the first of three tiers: the bits that they give in the
// host's.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/synthetic/random_model.h"
#include "core/model/tokenizer/tokenizer.h"
#include "core/runtime/plan.h"
#include "tests/core/runtime/story.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr double kTolerance = 1e-5;  // f32 sums against double

std::string with(const std::string& attention, const std::string& type) {
  return "[storage]\nplugin = 'dram'\ntype_k = '" + type + "'\ntype_v = '" + type +
         "'\n[attention]\nplugin = '" + attention + "'\n";
}

struct Strategy {
  std::string toml;
  const char* type;
  double tolerance;
  bool can_cut;
};
// In f16 a last bit of a hidden state may round K or V to another number.
const Strategy kStrategies[] = {
    {"[selector]\nplugin = 'dense'\n", "f16", 1e-3, true},
    {"[selector]\nplugin = 'block_topk'\nbudget_tokens = 24\n[representative]\nplugin = 'minmax'\n",
     "f32", kTolerance, true},
    {"[selector]\nplugin = 'h2o'\nbudget_tokens = 20\n", "f32", kTolerance, false},  // by mass
};

// Greedy tokens, and the logits that chose them.
std::vector<TokenId> generate(Engine& engine, std::span<const TokenId> prompt, uint32_t n,
                              size_t n_vocab, Logits& all) {
  const SequenceId seq = engine.open();
  std::vector<float> logits(n_vocab);
  REQUIRE(engine.prefill(seq, prompt, logits) == prompt.size());
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < n; ++i) {
    all.push_back(logits);
    out.push_back(best(logits));
    const Engine::DecodeItem items[] = {{seq, out.back()}};
    engine.decode(items, logits);
  }
  return out;
}

// A representative, its options, the type of K and V, and how scores of a group become one.
struct Choice {
  const char *name, *options, *type, *reduce;
};
struct Told {
  Logits logits;
  Engagement engagement;
};

// Two prompts, and tokens of both that are decoded together.
Logits short_story(Engine& engine) {
  Logits out;
  const SequenceId a = engine.open(), b = engine.open();
  out.push_back(prefill(engine, a, some_tokens(100, 1)));
  out.push_back(prefill(engine, b, some_tokens(77, 2)));
  for (TokenId token = 0; token < 8; ++token) {
    out.emplace_back(600);
    engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token}}, out.back());
  }
  return out;
}

Logits one_token(Engine& engine) {
  const SequenceId seq = engine.open();
  return {prefill(engine, seq, some_tokens(77)), decode(engine, seq, 5)};
}

// What lies or works on the device.
struct There {
  bool blocks, choice;  // summaries with the blocks
};
constexpr There kNothing{false, false}, kBlocks{true, false}, kChoice{false, true},
    kAll{true, true};
const std::string kTopKThere = KVASIR_TEST_FOLDER "/cuda_block_topk_emulation.so";

// By block_topk or its twin.
template <class Tell>
Told told_by(const Choice& c, There there, const Tell& tell) {
  Bench bench(8, 2, 32);
  EngineOptions options;
  options.max_sequences = 4;
  const std::string representative =
      there.blocks ? KVASIR_TEST_FOLDER "/cuda_" + std::string(c.name) + "_emulation.so" : c.name;
  std::string storage = with(KVASIR_TEST_BACKEND, c.type);
  if (there.blocks) storage.replace(storage.find("dram"), 4, KVASIR_TEST_STORAGE);
  const auto engine = bench.engine(
      "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n"
      "gqa_reduce = '" +
          std::string(c.reduce) + "'\n[selector]\nplugin = '" +
          (there.choice ? kTopKThere : "block_topk") +
          "'\nbudget_tokens = 24\n[representative]\nplugin = '" + representative + "'\n" +
          (there.blocks ? "" : "coarse_first = false\n") + c.options + storage,
      options);
  Told out{tell(*engine), engine->decode_engagement()};
  CHECK(bench.log.empty());
  CHECK(out.engagement.fallbacks == 0);
  CHECK(out.engagement.representative_bytes_read > 0);
  return out;
}

// Attention gives the bits of the blocks that were chosen: the same ones, step by step.
template <class Tell>
void check_chooses_alike(const Choice& c, There there, const Tell& tell) {
  CAPTURE(c.name);
  CAPTURE(c.reduce);
  const Told want = told_by(c, kNothing, tell), got = told_by(c, there, tell);
  CHECK(got.logits == want.logits);
  CHECK(got.engagement.tokens_attended == want.engagement.tokens_attended);
  CHECK(got.engagement.representative_bytes_read == want.engagement.representative_bytes_read);
}

// Of each layer two full blocks are on the device between steps, three in main memory.
std::string in_tiers(const std::string& more = "") {
  return "[storage]\nplugin = '" KVASIR_TEST_TIERED
         "'\ntype_k = 'f16'\ntype_v = 'f16'\ndevice_blocks = 2\ncached_blocks = 3\n" +
         more + "[attention]\nplugin = '" KVASIR_TEST_BACKEND "'\n";
}
const std::string kInTiers = in_tiers(), kInMemory = with(KVASIR_TEST_BACKEND, "f16");
const std::string kOnDevice = "[storage]\nplugin = '" KVASIR_TEST_STORAGE
                              "'\ntype_k = 'f16'\ntype_v = 'f16'\n[attention]\nplugin = "
                              "'" KVASIR_TEST_BACKEND "'\n";
// Quest, whose next choice the core foresees, and InfiniGen, which looks a layer ahead itself, on
// the host.
std::string quest(const std::string& representative) {
  return "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n"
         "foresee = 'choose'\ngqa_reduce = 'sum'\n[selector]\nplugin = 'block_topk'\n"
         "budget_tokens = 24\n[representative]\nplugin = '" +
         representative + "'\n";
}
const std::string kQuestInMemory = quest("minmax") + "coarse_first = false\n" + kInMemory;
const std::string kQuestInTiers = quest(KVASIR_TEST_FOLDER "/cuda_minmax_emulation.so") + kInTiers;
const std::string kInfiniGen =
    "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n"
    "dense_layers = [0]\n[selector]\nplugin = 'infinigen'\nbudget_tokens = 20\n"
    "skew_tokens = 32\npartial_weight_ratio = 0.25\nalpha = 50.0\n";

// What each kv head of each layer attended to, call by call.
using Seen = std::vector<std::vector<uint32_t>>;
EngineOptions watched(Seen& seen) {
  EngineOptions options;
  options.max_sequences = 4;
  options.on_attend = [&seen](uint32_t layer, uint64_t, uint32_t head,
                              std::span<const uint32_t> tokens) {
    seen.push_back({layer, head});
    seen.back().insert(seen.back().end(), tokens.begin(), tokens.end());
  };
  return options;
}

// Tokens behind a prompt, and what they took.
constexpr uint32_t kPrompt = 120, kSteps = 12;
Told decoded(Bench& bench, const std::string& toml) {
  const auto engine = bench.engine(toml);
  const SequenceId seq = engine->open();
  Told out;
  out.logits.push_back(prefill(*engine, seq, some_tokens(kPrompt)));
  engine->reset_engagement();
  for (uint32_t i = 0; i < kSteps; ++i) out.logits.push_back(decode(*engine, seq, token_at(i)));
  out.engagement = engine->decode_engagement();
  CHECK(out.engagement.fallbacks == 0);
  return out;
}

// With all layers on the device, in bf16.
MemoryPlan plan_of_8b(const StrategyConfig& strategy, uint32_t max_context) {
  const ModelShape shape = shape_of(preset("llama-3.1-8b"));
  EngineOptions options;
  options.max_context = max_context;
  options.max_step_tokens = strategy.cache.chunk_size.value;
  Model::Options on_device;
  on_device.compute = Compute::kBF16;
  on_device.max_batch_tokens = options.max_step_tokens;
  on_device.device_layers = shape.n_layers + 1;
  Bench bench;
  Pipeline pipeline = bench.pipeline(strategy);
  return make_plan(shape, Model::plan_memory(shape, on_device), pipeline, options, 0);
}

}  // namespace

TEST_SUITE("plugins/cuda/engine") {
  TEST_CASE("prompts, batches, forks, cuts and saved sequences give the numbers of reference") {
    for (const Strategy& s : kStrategies) {
      if (few_cases() && !s.can_cut) continue;
      CAPTURE(s.toml);
      Bench bench(8, 2, 32);
      EngineOptions options;
      options.max_sequences = 4;
      const std::string cache =
          "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n";
      const auto engine_with = [&](const char* attention) {
        return bench.engine(cache + s.toml + with(attention, s.type), options);
      };
      const auto expected = engine_with("reference"), engine = engine_with(KVASIR_TEST_BACKEND);
      const Logits want = story(*expected, s.can_cut), got = story(*engine, s.can_cut);
      CHECK(relative_difference(got, want) <= s.tolerance);
      CHECK(bench.log.empty());
      CHECK(engine->decode_engagement().fallbacks == 0);
      CHECK(engine->decode_engagement().tokens_attended ==
            expected->decode_engagement().tokens_attended);
    }
  }

  TEST_CASE("blocks in the device's memory give the bits that they give in the host's") {
    const std::string snapkv = "[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n";  // packs
    for (const Strategy& s : {Strategy{"[selector]\nplugin = 'dense'\n", "f16", 0, true},
                              Strategy{"[selector]\nplugin = 'streaming'\n", "q8_0", 0, true},
                              Strategy{snapkv, "f32", 0, false}}) {
      if (few_cases() && !s.can_cut) continue;
      CAPTURE(s.toml);
      Bench bench(8, 2, 32);
      EngineOptions options;
      options.max_sequences = 4;
      const std::string cache =
          "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n";
      const std::string in_host = with(KVASIR_TEST_BACKEND, s.type);
      std::string in_device = in_host;
      in_device.replace(in_device.find("dram"), 4, KVASIR_TEST_STORAGE);
      const auto expected = bench.engine(cache + s.toml + in_host, options);
      const auto engine = bench.engine(cache + s.toml + in_device, options);
      CHECK(story(*engine, s.can_cut) == story(*expected, s.can_cut));
      CHECK(bench.log.empty());
      CHECK(engine->decode_engagement().fallbacks == 0);
    }
  }

  TEST_CASE(
      "with the window on the device and the context in the host's memory, the same numbers") {
    const std::string quest =
        "[selector]\nplugin = 'block_topk'\nbudget_tokens = 24\n[representative]\nplugin = "
        "'minmax'\n";
    const std::string h2o = "[selector]\nplugin = 'h2o'\nbudget_tokens = 20\n";
    for (const std::string& selector : {quest, h2o}) {
      if (few_cases() && selector != quest) continue;
      CAPTURE(selector);
      Bench bench(8, 2, 32);
      EngineOptions options;
      options.max_sequences = 4;
      const auto engine_with = [&](const std::string& prompts, const std::string& tables) {
        return bench.engine(
            "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n" +
                prompts + selector + tables,
            options);
      };
      const auto expected = engine_with("", with("reference", "f32"));
      const Logits want = short_story(*expected);
      uint64_t copied[2] = {};
      for (const bool by_window : {true, false}) {
        const auto engine =
            engine_with(by_window ? "" : "prompt_attention = 'context'\n",
                        "[[storage]]\nholds = 'window'\nplugin = '" KVASIR_TEST_STORAGE
                        "'\ntype_k = 'f32'\ntype_v = 'f32'\n[[storage]]\nholds = 'context'\n"
                        "plugin = 'dram'\ntype_k = 'f32'\ntype_v = 'f32'\n"
                        "[[attention]]\nholds = 'window'\nplugin = '" KVASIR_TEST_BACKEND
                        "'\n[[attention]]\nholds = 'context'\nplugin = 'cpu'\n");
        CHECK(relative_difference(short_story(*engine), want) <= kTolerance);
        CHECK(engine->decode_engagement().fallbacks == 0);
        CHECK(engine->decode_engagement().tokens_attended ==
              expected->decode_engagement().tokens_attended);
        copied[by_window] = engine->decode_engagement().device_copy_bytes;
      }
      CHECK(copied[0] == copied[1]);
      CHECK(bench.log.empty());
    }
  }

  TEST_CASE("an 8B with 512K tokens in f16, or 1M in q8_0, is planned for 24 GB beside 128 GiB") {
    for (const auto& [tokens, type] : {std::pair{512u << 10, "f16"}, {1u << 20, "q8_0"}}) {
      const StrategyConfig strategy =
          load_strategy(KVASIR_SOURCE_DIR "/configs/gpu/hybrid.toml",
                        {{"storage.window.plugin", KVASIR_TEST_STORAGE, {}},
                         {"attention.window.plugin", KVASIR_TEST_BACKEND, {}},
                         {"storage.context.kv_type", type, {}}},
                        {});
      const MemoryPlan plan = plan_of_8b(strategy, tokens);
      CAPTURE(plan.device_bytes());
      CHECK(plan.prompts_by == "kvasir.cuda");
      CHECK(plan.device_bytes() < 24'000'000'000);
      CHECK(plan.total() < uint64_t{128} << 30);
      CHECK(plan.kv_bytes > uint64_t{60} << 30);
      CHECK(plan.device_sequence_bytes == plan.kv_window_bytes);
      CHECK(plan.device_attention_bytes > uint64_t{256} << 20);  // carry_mib at least
    }
  }

  TEST_CASE("an 8B with 128K tokens chosen on the host is planned for 24 GB beside 64 GiB") {
    constexpr uint32_t kTokens = 128u << 10;
    const StrategyConfig strategy = load_strategy(
        KVASIR_SOURCE_DIR "/configs/gpu/infinigen.toml",
        {{"storage.plugin", KVASIR_TEST_TIERED, {}}, {"attention.plugin", KVASIR_TEST_BACKEND, {}}},
        {});
    const MemoryPlan plan = plan_of_8b(strategy, kTokens);
    const uint64_t layer_bytes = uint64_t{kTokens} * 8 * (128 + 128) * 2;  // in f16
    CAPTURE(plan.device_bytes());
    CAPTURE(plan.total());
    CHECK(plan.device_bytes() < 24'000'000'000);
    CHECK(plan.device_sequence_bytes > 32 * uint64_t{8192} * 8 * (128 + 128) * 2);
    CHECK(plan.attention_scratch_bytes >= layer_bytes);  // what update() is given copies of
    CHECK(plan.attention_scratch_bytes < layer_bytes + layer_bytes / 4);
    CHECK(plan.total() < uint64_t{64} << 30);
  }

  TEST_CASE("attention over blocks of the device copies nothing but the new token's K and V") {
    Bench bench;  // 3 layers, 2 kv heads, 16 wide
    const auto engine = bench.engine("[selector]\nplugin = 'dense'\n[storage]\nplugin = '" +
                                     std::string(KVASIR_TEST_STORAGE) +
                                     "'\n[attention]\nplugin = '" + KVASIR_TEST_BACKEND + "'\n");
    const SequenceId seq = engine->open();
    prefill(*engine, seq, some_tokens(50));
    engine->reset_engagement();
    decode(*engine, seq, 5);
    CHECK(engine->decode_engagement().device_copy_bytes == 3 * 2 * (16 + 16) * sizeof(float));
  }

  TEST_CASE("representatives and selectors of the device choose what those of the host choose") {
    const Choice minmax{"minmax", "", "f32", "sum"};
    check_chooses_alike(minmax, kAll, [](Engine& engine) { return story(engine, true); });
    check_chooses_alike({"mean", "", "f16", "max"}, kAll, short_story);
    check_chooses_alike({"minmax", "box_scale = 0.3\n", "q8_0", "softmax_sum"}, kBlocks,
                        short_story);
    check_chooses_alike({"mean", "dtype = 'f32'\n", "f32", "sum"}, kAll, short_story);
    check_chooses_alike(minmax, kChoice, one_token);
    const Logits all = told_by(minmax, kAll, one_token).logits;
    CHECK(all == told_by(minmax, kBlocks, one_token).logits);
    // Other blocks are seen in the logits.
    CHECK(all != told_by({"minmax", "box_scale = 0.0\n", "f32", "sum"}, kAll, one_token).logits);
  }

  TEST_CASE(
      "with records on the device queries travel, scores to a host's selector or what was chosen") {
    for (const std::string& selector : {std::string("block_topk"), kTopKThere}) {
      CAPTURE(selector);
      Bench bench;  // 3 layers, 8 query heads over 2 kv heads, 16 wide
      const auto engine = bench.engine(
          "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\n"
          "gqa_reduce = 'sum'\n[selector]\nplugin = '" +
          selector +
          "'\nbudget_tokens = 16\n[representative]\nplugin = '" KVASIR_TEST_FOLDER
          "/cuda_minmax_emulation.so'\n[storage]\nplugin = '" KVASIR_TEST_STORAGE
          "'\n[attention]\nplugin = '" KVASIR_TEST_BACKEND "'\n");
      const SequenceId seq = engine->open();
      prefill(*engine, seq, some_tokens(87));
      engine->reset_engagement();
      decode(*engine, seq, 5);  // the 88th token: its block is full, and summarised
      const Engagement& engagement = engine->decode_engagement();
      const uint64_t n_scores = engagement.representative_bytes_read / (2 * 16 * sizeof(uint16_t));
      CHECK(n_scores == 3 * 2 * 8);  // blocks behind the sink's, before the window's
      // Two blocks per layer and kv head, or all scores.
      const uint64_t n_travel = selector == kTopKThere ? 3 * 2 * 2 : n_scores;
      CHECK(engagement.device_copy_bytes ==
            (3 * (2 * (16 + 16) + 8 * 16) + n_travel) * sizeof(float));
      CHECK(engagement.fallbacks == 0);
    }
  }

  TEST_CASE("blocks that travel between device, memory and file give the bits of those in memory") {
    const std::string snapkv =  // packs
        "[cache]\nblock_size = 8\n[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n";
    struct Pair {
      std::string in_memory, in_tiers;
      Logits (*tell)(Engine&);
    };
    const auto all = [](Engine& engine) { return story(engine, true); };
    for (const Pair& pair : {Pair{kQuestInMemory, kQuestInTiers, all},
                             Pair{snapkv + kInMemory, snapkv + kInTiers, short_story}}) {
      CAPTURE(pair.in_tiers);
      Bench bench(8, 2, 32);
      EngineOptions options;
      options.max_sequences = 4;
      const auto expected = bench.engine(pair.in_memory, options);
      const auto engine = bench.engine(pair.in_tiers, options);
      CHECK(pair.tell(*engine) == pair.tell(*expected));
      CHECK(bench.log.empty());
      CHECK(engine->decode_engagement().fallbacks == 0);
      CHECK(engine->decode_engagement().blocks_missed > 0);
    }
  }

  TEST_CASE("InfiniGen on the host chooses the same tokens of blocks on the device") {
    Bench bench(8, 2, 32);
    Seen want;
    const Logits logits = story(*bench.engine(kInfiniGen + kInMemory, watched(want)), true);
    for (const std::string& storage : {kOnDevice, kInTiers}) {
      if (few_cases() && storage == kOnDevice) continue;
      CAPTURE(storage);
      bench.log.clear();
      Seen seen;
      const auto engine = bench.engine(kInfiniGen + storage, watched(seen));
      CHECK((story(*engine, true) == logits));
      CHECK((seen == want));
      CHECK(engine->decode_engagement().fallbacks == 0);
      CHECK(bench.log.empty());  // until a storage sums up, at its end
    }
  }

  TEST_CASE("of a decoded token K and V come back to a selector on the host, and nothing else") {
    Bench bench(8, 2, 32);  // 3 layers, one of them dense
    const Told got = decoded(bench, kInfiniGen + kOnDevice);
    const uint64_t written = 2 * (32 + 32) * sizeof(float), read = 2 * (32 + 32) * 2;
    CHECK(got.engagement.device_copy_bytes == kSteps * (3 * written + 2 * read));
    CHECK(got.engagement.tokens_attended < 2 * 3 * kPrompt * kSteps);
  }

  TEST_CASE("of what is chosen only that travels to the device which is not there") {
    Bench bench(8, 2, 32);                                                  // 3 layers
    const uint64_t row_bytes = uint64_t{2} * (32 + 32) * sizeof(uint16_t);  // of both kv heads
    const uint64_t all_bytes = 3 * row_bytes * (kPrompt * kSteps);          // and more
    for (const auto& [in_memory, tiers] : {std::pair{kQuestInMemory, kQuestInTiers},
                                           {kInfiniGen + kInMemory, kInfiniGen + kInTiers}}) {
      CAPTURE(tiers);
      const Told want = decoded(bench, in_memory), got = decoded(bench, tiers);
      CHECK(got.logits == want.logits);
      REQUIRE(got.engagement.tiers.size() == 3);
      const TierTraffic &device = got.engagement.tiers[0], &memory = got.engagement.tiers[1];
      CHECK(device.tier == "device");
      CHECK(device.bytes_written > 0);
      CHECK(device.bytes_written < want.engagement.kv_bytes_read);  // which travelled all
      CHECK(want.engagement.kv_bytes_read < all_bytes);
      CHECK(memory.n_reads > 0);
    }
  }

  TEST_CASE("what InfiniGen foresees is on the device before a layer attends to it") {
    Bench bench(8, 2, 32);
    const Told ahead = decoded(bench, kInfiniGen + kInTiers),
               asked = decoded(bench, kInfiniGen + in_tiers("read_ahead = false\n"));
    CHECK((ahead.logits == asked.logits));
    const auto n_asked = [](const Told& told) {  // tokens that a step had to ask for
      return told.engagement.tiers[1].tokens + told.engagement.tiers[2].tokens;
    };
    CHECK(n_asked(ahead) < n_asked(asked));
    CHECK(ahead.engagement.blocks_hit > asked.engagement.blocks_hit);
    CHECK(ahead.engagement.tiers[0].bytes_written > 0);
  }

  TEST_CASE("a trained model says the same as with reference") {
    const GgufFile file = GgufFile::open(KVASIR_SOURCE_DIR "/models/kvasir-retrieval-3m-f16.gguf");
    const std::unique_ptr<Model> model = Model::load(file, test_pool(), {Compute::kF32, 512});
    const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_gguf(file);
    const std::vector<TokenId> prompt = tokenizer->encode(
        "The keeper of the harbour wrote: the pass key is 4 1 7. What is the pass key?", {});
    REQUIRE(prompt.size() > 10);
    Bench bench;
    Logits want, got;
    const auto text_of = [&](const char* attention, Logits& logits) {
      const auto engine =
          bench.engine(*model, "[selector]\nplugin = 'dense'\n" + with(attention, "f32"));
      return generate(*engine, prompt, 8, model->shape().vocab_size, logits);
    };
    CHECK(text_of("reference", want) == text_of(KVASIR_TEST_BACKEND, got));
    CHECK(relative_difference(got, want) <= kTolerance);
  }
}
