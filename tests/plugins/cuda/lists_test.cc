// Lists that stay on the device where they are chosen, in a real engine on the emulation: the bits,
// counters and faults of lists that come to the host before attention.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/plan.h"
#include "kernels/cuda/emulation/capture.h"
#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kFolder = KVASIR_TEST_FOLDER;
const std::string kCache =
    "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n";

std::string on_device(const std::string& name) { return kFolder + "/" + name + "_emulation.so"; }
const std::string kBlocks = "[storage]\nplugin = '" + on_device("gpu") +
                            "'\ntype_k = 'f32'\ntype_v = 'f32'\n[attention]\nplugin = '" +
                            on_device("cuda") + "'\n";
std::string scored_by(const std::string& representative) {
  return "[representative]\nplugin = '" + representative + "'\n";
}
// By a selector that may say it wrongly, and leaves lists on the device or does not.
std::string wrong_lists(bool there, const std::string& wrong = "nothing", uint32_t budget = 12) {
  return "[selector]\nplugin = '" + kFolder +
         "/test_wrong_lists.so'\nbudget_tokens = " + std::to_string(budget) + "\nwrong = '" +
         wrong + "'\nthere = " + (there ? "true" : "false") + "\n";
}

std::unique_ptr<Model> model_on_device(const Bench& bench) {
  Model::Options options;
  options.max_batch_tokens = 64;
  options.device_layers = 99;
  options.device_library = KVASIR_TEST_DEVICE_LIBRARY;
  return Model::load(*bench.tiny.file, test_pool(), options);
}

EngineOptions options() {
  EngineOptions made;
  made.max_sequences = 4;
  made.max_step_tokens = 40;
  return made;
}

void decode_both(Engine& engine, SequenceId a, SequenceId b, TokenId token, Logits& out) {
  out.emplace_back(600);
  engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token + 1}}, out.back());
}

// Two sequences that grow over borders of blocks, a piece of a prompt beside a token, a fork, cuts
// inside a full block and between two, one that ends, drafts, of which one is accepted, and tokens
// that are computed again.
Logits all_events(Engine& engine) {
  Logits out;
  const auto a = engine.open(), b = engine.open();
  out.push_back(prefill(engine, a, some_tokens(45, 1)));
  out.push_back(prefill(engine, b, some_tokens(30, 2)));
  for (TokenId token = 0; token < 10; ++token) decode_both(engine, a, b, token, out);
  const auto tokens = some_tokens(7, 9);
  const TokenId one[] = {4};
  const auto c = engine.open();
  out.emplace_back(300);
  const StepItem mixed[] = {{.seq = a, .tokens = one, .logits = out.back()},
                            {.seq = c, .tokens = tokens}};
  engine.begin_prompt(c, 7);
  for (const ItemResult& result : engine.step(mixed)) CHECK(result.text() == "");
  engine.close(c);
  const auto d = engine.fork(a);
  for (TokenId token = 20; token < 27; ++token) decode_both(engine, a, d, token, out);
  engine.truncate(d, 50);
  for (TokenId token = 30; token < 34; ++token) decode_both(engine, d, a, token, out);
  engine.truncate(d, 48);
  decode_both(engine, b, d, 40, out);
  engine.close(b);
  const std::vector<TokenId> drafts = {7, 8, 9};
  const std::vector<int32_t> parents = {-1, 0, 0};
  out.emplace_back(900);
  const StepItem verified = {.seq = a, .tokens = drafts, .logits = out.back(), .parents = parents};
  CHECK(engine.step({&verified, 1})[0].text() == "");
  engine.accept(a, 0);
  for (TokenId token = 50; token < 53; ++token) decode_both(engine, d, a, token, out);
  engine.close(d);
  std::vector<uint32_t> again;  // of nine full blocks, which nobody else holds
  for (uint32_t pos = 9; pos < 43; ++pos) again.push_back(pos);
  out.emplace_back(300);
  const StepItem computed{.seq = a, .logits = out.back(), .recompute = again};
  CHECK(engine.step({&computed, 1})[0].text() == "");
  const auto e = engine.open();  // where those blocks were
  out.push_back(prefill(engine, e, some_tokens(41, 3)));
  for (TokenId token = 54; token < 60; ++token) decode_both(engine, e, a, token, out);
  return out;
}

Logits two_together(Engine& engine) {
  Logits out;
  const auto a = engine.open(), b = engine.open();
  out.push_back(prefill(engine, a, some_tokens(40, 1)));
  out.push_back(prefill(engine, b, some_tokens(33, 2)));
  for (TokenId token = 0; token < 6; ++token) decode_both(engine, a, b, token, out);
  return out;
}

struct Told {
  Logits logits;
  Engagement decode;
  std::vector<std::string> log;
};
Told told(Bench& bench, const Model& model, const std::string& toml,
          const std::function<Logits(Engine&)>& tell) {
  bench.log.clear();
  const auto engine = bench.engine(model, toml, options());
  Told out{tell(*engine), engine->decode_engagement(), bench.log};
  bench.log.clear();
  return out;
}

void check_alike(const Told& got, const Told& want) {
  CHECK(got.logits == want.logits);
  CHECK(got.log == want.log);
  const Engagement &g = got.decode, &w = want.decode;
  CHECK(g.tokens_considered == w.tokens_considered);
  CHECK(g.tokens_selected == w.tokens_selected);
  CHECK(g.tokens_attended == w.tokens_attended);
  CHECK(g.kv_bytes_read == w.kv_bytes_read);
  CHECK(g.selections == w.selections);
  CHECK(g.reused == w.reused);
  CHECK(g.bypassed == w.bypassed);
  CHECK(g.fallbacks == w.fallbacks);
}

// While it lives the device does nothing before somebody waits for it.
struct PutOff {
  PutOff() { cuda::emulation::put_off(true); }
  ~PutOff() {
    cuda::emulation::finish_all();
    cuda::emulation::put_off(false);
  }
};

// fn(model): of the host, and with all layers on the device, where q and o stay there, too; what is
// given to a stream comes late.
void on_both_models(const Bench& bench, const std::function<void(const Model&)>& fn) {
  const auto model = model_on_device(bench);
  const PutOff scope;
  fn(*bench.tiny.model);
  CAPTURE("layers on the device");
  fn(*model);
}

}  // namespace

TEST_SUITE("plugins/cuda/lists") {
  TEST_CASE("the same bits and counters whatever the cache does, and lists stay where they may") {
    const struct {
      const char *name, *cache;
      uint32_t budget;
      bool stays, is_whole;
    } cases[] = {
        {"plain", "", 12, true, true},
        {"every second token and layer", "token_step = 2\nlayer_step = 2\n", 12, true, true},
        {"a budget for all, and the selector asked", "bypass = false\n", 400, true, false},
        {"a budget for all", "", 400, false, false},
        {"dense below", "dense_below_tokens = 43\n", 12, true, false},
        {"one list for all heads", "head_select_mode = 'shared'\n", 12, false, false},
        {"a layer ahead", "foresee = 'choose'\n", 12, false, false},
        {"scores that the host reduces", "gqa_reduce = 'max'\n", 12, false, false},
    };
    Bench bench(4, 2, 8);
    for (const auto& c : cases) {
      CAPTURE(c.name);
      const auto toml = [&](bool there) {
        return kCache + c.cache + wrong_lists(there, "nothing", c.budget) +
               scored_by(on_device("cuda_minmax")) + kBlocks;
      };
      const auto tell = c.is_whole ? all_events : two_together;
      const Told here = told(bench, *bench.tiny.model, toml(false), tell),
                 there = told(bench, *bench.tiny.model, toml(true), tell);
      check_alike(there, here);
      CHECK(there.decode.representative_bytes_read == here.decode.representative_bytes_read);
      CHECK(there.decode.fallbacks == 0);
      CHECK(there.log.empty());
      CHECK((there.decode.device_copy_bytes > here.decode.device_copy_bytes) == c.stays);
    }
  }

  TEST_CASE("the choice of block_topk, also with q and o on the device") {
    Bench bench(4, 2, 8);
    on_both_models(bench, [&](const Model& model) {
      const auto toml = [&](const std::string& selector) {
        return kCache + "[selector]\nplugin = '" + selector + "'\nbudget_tokens = 12\n" +
               scored_by(on_device("cuda_mean")) + kBlocks;
      };
      const Told here = told(bench, model, toml("block_topk"), all_events),
                 there = told(bench, model, toml(on_device("cuda_block_topk")), all_events);
      check_alike(there, here);
      CHECK(there.log.empty());
      CHECK(there.decode.device_copy_bytes < here.decode.device_copy_bytes);
    });
  }

  TEST_CASE("of a layer with everything on the device its lists are copied, and nothing else") {
    Bench bench(4, 2, 8);
    const auto model = model_on_device(bench);
    const auto engine =
        bench.engine(*model,
                     kCache + "[selector]\nplugin = '" + on_device("cuda_block_topk") +
                         "'\nbudget_tokens = 12\n" + scored_by(on_device("cuda_minmax")) + kBlocks,
                     options());
    const SequenceId seq = engine->open();
    prefill(*engine, seq, some_tokens(45, 1));
    engine->reset_engagement();
    decode(*engine, seq, 5);
    CHECK(engine->decode_engagement().device_copy_bytes == 3 * 2 * 3 * sizeof(uint32_t));
  }

  TEST_CASE("calls of one stream do not wait for each other: a layer waits once for its plugins") {
    Bench bench(4, 2, 8);
    const auto model = model_on_device(bench);
    const auto waits = [&](const std::string& selector) {
      const auto engine = bench.engine(
          *model, kCache + selector + scored_by(on_device("cuda_minmax")) + kBlocks, options());
      const SequenceId seq = engine->open();
      prefill(*engine, seq, some_tokens(45, 1));
      decode(*engine, seq, 4);
      const uint64_t before = cuda::emulation::n_waits();
      decode(*engine, seq, 5);
      return cuda::emulation::n_waits() - before;
    };
    const uint64_t dense = waits("[selector]\nplugin = 'dense'\n");
    CHECK(waits("[selector]\nplugin = '" + on_device("cuda_block_topk") +
                "'\nbudget_tokens = 12\n") == dense);
    // Of three layers: tokens are written, scored, chosen among, attended.
    CHECK(waits(wrong_lists(true) + "streams = false\n") == dense + 3 * 4);
  }

  TEST_CASE("a strategy whose plugins take no stream takes it from those before") {
    Bench bench(4, 2, 8);
    const PutOff scope;
    const auto toml = [&](const std::string& selector) {
      return kCache + selector + scored_by(on_device("cuda_minmax")) + kBlocks;
    };
    const std::string topk = "[selector]\nplugin = '" + on_device("cuda_block_topk") +
                             "'\nbudget_tokens = 12\n",
                      other = wrong_lists(true) + "streams = false\n";
    const auto alone = bench.engine(toml(topk), options()),
               other_alone = bench.engine(toml(other), options()),
               both = bench.engine(toml(topk), options());
    const StrategyId second = both->add_strategy(bench.pipeline(bench.strategy(toml(other))));
    const auto tell = [](Engine& engine, StrategyId strategy) {
      const SequenceId seq = engine.open(strategy);
      Logits out{prefill(engine, seq, some_tokens(45, 1))};
      for (TokenId token = 0; token < 3; ++token) out.push_back(decode(engine, seq, token));
      return out;
    };
    CHECK(tell(*both, second) == tell(*other_alone, 0));
    const auto waits = [&](Engine& engine) {
      const uint64_t before = cuda::emulation::n_waits();
      const Logits said = tell(engine, 0);
      return std::pair{said, cuda::emulation::n_waits() - before};
    };
    const auto [said, n] = waits(*both);
    const auto [said_alone, n_alone] = waits(*alone);
    CHECK(said == said_alone);
    CHECK(n > n_alone + 3 * 3 * 2);
    CHECK(bench.log.empty());
  }

  TEST_CASE("a wrong list is the selector's fault, in its words, and the step is dense") {
    Bench bench(4, 2, 8);
    on_both_models(bench, [&](const Model& model) {
      const auto toml = [&](bool there, const std::string& wrong) {
        return kCache + wrong_lists(there, wrong) + scored_by(on_device("cuda_minmax")) + kBlocks;
      };
      const Told well = told(bench, model, toml(true, "nothing"), two_together);
      for (const std::string wrong : {"far", "order", "twice", "behind"}) {
        if (&model != bench.tiny.model && wrong != "far") continue;
        CAPTURE(wrong);
        const Told here = told(bench, model, toml(false, wrong), two_together),
                   there = told(bench, model, toml(true, wrong), two_together);
        check_alike(there, here);
        CHECK(there.logits != well.logits);
        CHECK(there.decode.fallbacks > 3);
        REQUIRE(there.log.size() == 3);
        CHECK(there.log[0].find("select, layer 0, sequence") != std::string::npos);
        CHECK(there.log[2].find("put aside") != std::string::npos);
      }
    });
  }

  TEST_CASE("a fault ends the sequence where the strategy says so, and no other") {
    Bench bench(4, 2, 8);
    std::vector<std::string> texts;
    for (const bool there : {false, true}) {
      const auto engine = bench.engine(kCache + "on_fault = 'fail'\n" + wrong_lists(there, "far") +
                                           scored_by(on_device("cuda_minmax")) + kBlocks,
                                       options());
      const auto a = engine->open(), b = engine->open();
      prefill(*engine, a, some_tokens(40, 1));
      prefill(*engine, b, some_tokens(33, 2));
      std::vector<float> logits(600);
      const TokenId token[] = {5};
      const StepItem items[] = {{.seq = a, .tokens = token, .logits = std::span(logits).first(300)},
                                {.seq = b, .tokens = token, .logits = std::span(logits).last(300)}};
      const auto results = engine->step(items);
      texts.push_back(results[0].text() + "|" + results[1].text());
      CHECK((results[0].text() == "") != (results[1].text() == ""));
    }
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0].find("lies outside the candidate range") != std::string::npos);
  }

  TEST_CASE("scores that are not finite are the representative's fault, as ever") {
    Bench bench(4, 2, 8);
    on_both_models(bench, [&](const Model& model) {
      const auto toml = [&](bool there) {
        return kCache + wrong_lists(there) + scored_by(kFolder + "/test_nan_scores.so") + kBlocks;
      };
      const Told here = told(bench, model, toml(false), two_together),
                 there = told(bench, model, toml(true), two_together);
      check_alike(there, here);
      REQUIRE(!there.log.empty());
      CHECK(there.log[0].find("a score is not finite") != std::string::npos);
      CHECK(there.decode.fallbacks > 0);
    });
  }

  TEST_CASE("tables of blocks go with their sequences, and are planned for") {
    Bench bench(4, 2, 8);
    const std::string chosen = kCache + "[selector]\nplugin = '" + on_device("cuda_block_topk") +
                               "'\nbudget_tokens = 12\n" + scored_by(on_device("cuda_minmax")) +
                               kBlocks;
    const auto engine = bench.engine(chosen, options());
    const auto grow_and_close = [&] {
      const SequenceId seq = engine->open();
      prefill(*engine, seq, some_tokens(80, 1));
      for (TokenId token = 0; token < 9; ++token) decode(*engine, seq, token);
      const uint64_t before = cuda::memory_state().free_bytes;
      engine->close(seq);
      return cuda::memory_state().free_bytes - before;
    };
    CHECK(grow_and_close() >= 3 * 23 * sizeof(uint64_t) * 5);  // three layers of 23 blocks
    const uint64_t left = cuda::memory_state().free_bytes;
    grow_and_close();
    CHECK(cuda::memory_state().free_bytes == left);

    const auto planned = [&](const std::string& toml) {
      Pipeline pipeline = bench.pipeline(bench.strategy(toml));
      EngineOptions sizes = options();
      sizes.max_context = 4000;
      return make_plan(bench.tiny.model->shape(), {}, pipeline, sizes, 0).device_attention_bytes;
    };
    const std::string shared = "head_select_mode = 'shared'\n";
    const uint64_t more = planned(chosen) - planned(kCache + shared + chosen.substr(kCache.size()));
    CHECK(more >= uint64_t{3} * 4 * 1000 * 40);
    CHECK(more <= uint64_t{3} * 4 * 1300 * 40);
  }
}
