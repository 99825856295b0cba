// Which tokens the last layer computes: those whose logits are asked for.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"
#include "tests/support/forwarded_model.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nchunk_size = 16\nsink_tokens = 4\nwindow_tokens = 8\n";
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
const std::string kBlocks =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 16\n"
    "[representative]\nplugin = 'kvasir.minmax'\n";
// These observe attention of a prompt's last queries, and of all.
const std::string kSnap =
    "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 11\nwindow_size = 5\n";
const std::string kHeavy = "[selector]\nplugin = 'kvasir.h2o'\nhh_size = 9\n";
constexpr uint32_t kVocab = 300;

// Counts what comes behind attention, of each layer.
class CountingModel final : public ForwardedModel {
 public:
  using ForwardedModel::ForwardedModel;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override {
    ForwardedModel::attn_output(layer, o, n, h);
    n_outputs_.at(layer) += n;
  }
  void ffn(uint32_t layer, float* h, uint32_t n) const override {
    ForwardedModel::ffn(layer, h, n);
    n_ffn_.at(layer) += n;
  }
  using Counts = std::vector<uint32_t>;
  // Since it was last asked.
  Counts counts() const {
    CHECK(n_outputs_ == n_ffn_);
    n_outputs_.assign(shape().n_layers, 0);
    return std::exchange(n_ffn_, n_outputs_);
  }

 private:
  mutable Counts n_outputs_ = Counts(shape().n_layers), n_ffn_ = n_outputs_;
};

EngineOptions options() {
  EngineOptions made;
  made.max_context = 200;
  made.max_sequences = 4;
  made.max_step_tokens = 64;
  return made;
}

struct World {
  explicit World(const std::string& strategy = kDense)
      : model(*bench.tiny.model), engine(bench.engine(model, kCache + strategy, options())) {}
  SequenceId reading(uint32_t n) {
    const SequenceId seq = engine->open();
    engine->begin_prompt(seq, n);
    return seq;
  }
  Bench bench;
  CountingModel model;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/last_layer");

TEST_CASE("of a prompt the last layer computes the last token, of its other pieces nothing") {
  World world;
  const auto prompt = some_tokens(40);
  const SequenceId seq = world.engine->open();
  prefill(*world.engine, seq, prompt);
  CHECK(world.model.counts() == CountingModel::Counts{40, 40, 1});
  decode(*world.engine, seq, 5);
  CHECK(world.model.counts() == CountingModel::Counts{1, 1, 1});
  const SequenceId pieces = world.reading(40);
  const StepItem first = {.seq = pieces, .tokens = std::span(prompt).first(23)};
  CHECK(world.engine->step({&first, 1})[0].text().empty());
  CHECK(world.model.counts() == CountingModel::Counts{23, 23, 0});
}

TEST_CASE("items of a step get the bits that they get where the last layer computes all tokens") {
  for (const std::string& strategy : {kDense, kBlocks, kSnap, kHeavy}) {
    CAPTURE(strategy);
    World world(strategy), whole(strategy);
    const auto prompt = some_tokens(30, 2), other = some_tokens(21, 3), silent = some_tokens(17, 4);
    // Two whole prompts, a piece of one, a prompt whose logits nobody wants, twice: the second time
    // all logits are asked for, so that the last layer computes every token.
    Logits few(2, std::vector<float>(kVocab)), all = few, seen(30);
    const auto run = [&](World& in, Logits& to, bool ask_all) {
      const SequenceId a = in.reading(30), b = in.reading(21), c = in.reading(40),
                       d = in.reading(17);
      std::vector<StepItem> items = {{.seq = d, .tokens = std::span(silent)},
                                     {.seq = a, .tokens = std::span(prompt), .logits = to[0]},
                                     {.seq = c, .tokens = std::span(prompt).first(9)},
                                     {.seq = b, .tokens = std::span(other), .logits = to[1]}};
      if (ask_all)
        for (StepItem& item : items)
          item.all_logits = [&, is_seen = item.seq == a](uint32_t first, uint32_t n,
                                                         const float* logits) {
            for (uint32_t i = 0; is_seen && i < n; ++i, logits += kVocab)
              seen[first + i].assign(logits, logits + kVocab);
          };
      for (size_t i = 0; i < items.size(); i += 2)  // 64 tokens at most
        for (const ItemResult& result : in.engine->step(std::span(items).subspan(i, 2)))
          CHECK(result.text().empty());
      std::vector<float> next(kVocab), after(kVocab);
      const TokenId token[2] = {7, 8};
      const std::vector<StepItem> decoded = {
          {.seq = a, .tokens = std::span(token, 1), .logits = next},
          {.seq = d, .tokens = std::span(token + 1, 1), .logits = after}};
      in.engine->step(decoded);
      to.push_back(next);
      to.push_back(after);
    };
    run(world, few, false);
    CHECK(world.model.counts() == CountingModel::Counts{79, 79, 4});
    run(whole, all, true);
    CHECK(whole.model.counts() == CountingModel::Counts{79, 79, 79});
    CHECK(max_difference(few, all) == 0);
    CHECK(max_difference(few[0], seen.back()) == 0);
    CHECK(max_difference(few[0], few[1]) > 0);
  }
}

TEST_CASE("tokens to verify are all computed") {
  World world;
  const SequenceId seq = world.engine->open(), alone = world.engine->open();
  const auto prompt = some_tokens(20), draft = some_tokens(3, 9);
  prefill(*world.engine, seq, prompt);
  prefill(*world.engine, alone, prompt);
  world.model.counts();
  std::vector<float> logits(3 * kVocab);
  const StepItem item = {.seq = seq, .tokens = std::span(draft), .logits = logits};
  CHECK(world.engine->step({&item, 1})[0].text().empty());
  CHECK(world.model.counts() == CountingModel::Counts{3, 3, 3});
  for (size_t i = 0; i < draft.size(); ++i)
    CHECK(max_difference(std::span(logits).subspan(i * kVocab, kVocab),
                         decode(*world.engine, alone, draft[i])) == 0);
}

TEST_SUITE_END();
