// Slot positions: queries and keys are rotated by their index among what is attended, whatever is
// left out or evicted; a restricted follower of a layer group obeys its own restriction.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kQHeads = 4, kKvHeads = 2, kDim = 8, kGroup = kQHeads / kKvHeads;

float at(int32_t token, uint32_t head, uint32_t dim, uint32_t kind) {
  const double x = 0.37 * token + 2.3 * head + 0.71 * dim + 5.1 * kind;
  return static_cast<float>(std::sin(x * x));
}

void project(uint32_t, int32_t token, float* q, float* k, float* v) {
  for (uint32_t i = 0; i < kQHeads * kDim; ++i) q[i] = at(token, i / kDim, i % kDim, 0);
  for (uint32_t i = 0; k && i < kKvHeads * kDim; ++i) {
    k[i] = at(token, i / kDim, i % kDim, 1);
    v[i] = at(token, i / kDim, i % kDim, 2);
  }
}

// Interleaved RoPE with base 10000, written out.
std::vector<double> turned(int32_t token, uint32_t head, uint32_t kind, uint32_t pos) {
  std::vector<double> x(kDim);
  for (uint32_t i = 0; i < kDim; i += 2) {
    const double angle = pos * std::pow(10000.0, -static_cast<double>(i) / kDim);
    const double a = double{at(token, head, i, kind)}, b = double{at(token, head, i + 1, kind)};
    x[i] = a * std::cos(angle) - b * std::sin(angle);
    x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
  return x;
}

// Output of a query head over `tokens`, the last of which asks; all at their index in the list.
std::vector<double> expected(const std::vector<uint32_t>& tokens, uint32_t q_head) {
  const auto q = turned(static_cast<int32_t>(tokens.back()), q_head, 0,
                        static_cast<uint32_t>(tokens.size() - 1));
  std::vector<double> out(kDim);
  double sum = 0;
  for (uint32_t slot = 0; slot < tokens.size(); ++slot) {
    const auto token = static_cast<int32_t>(tokens[slot]);
    const auto k = turned(token, q_head / kGroup, 1, slot);
    double dot = 0;
    for (uint32_t d = 0; d < kDim; ++d) dot += q[d] * k[d];
    const double weight = std::exp(dot / std::sqrt(double{kDim}));
    sum += weight;
    for (uint32_t d = 0; d < kDim; ++d) out[d] += weight * double{at(token, q_head / kGroup, d, 2)};
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/positions");

TEST_CASE("slots: distances are those inside what is attended") {
  for (const std::string selector : {"streaming", "kvasir.h2o"}) {
    CAPTURE(selector);
    RopeConfig rope;
    rope.n_dims = kDim;
    std::vector<float> last(kQHeads * kDim);
    const PrescribedModel model({1, kQHeads, kKvHeads, kDim, kDim, 512, rope}, project,
                                [&](uint32_t, std::span<const int32_t> tokens, const float* o) {
                                  std::copy_n(o + (tokens.size() - 1) * last.size(), last.size(),
                                              last.begin());
                                });
    Bench bench;
    EngineOptions options;
    options.max_context = 512;
    const auto engine = bench.engine(
        model,
        "[cache]\nblock_size = 16\nsink_tokens = 4\nwindow_tokens = 20\npositions = 'slot'\n"
        "[selector]\nplugin = '" +
            selector + "'\n" + (selector == "streaming" ? "" : "hh_size = 9\n") + kRecording,
        options);
    Recording& book = recording_of(*engine);
    const SequenceId seq = engine->open();
    std::vector<TokenId> prompt(100);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i);
    std::vector<float> logits(1);
    engine->prefill(seq, prompt, logits);
    book.armed = 1;
    for (TokenId token = 100; token < 140; ++token) {
      CAPTURE(token);
      const Engine::DecodeItem items[] = {{seq, token}};
      engine->decode(items, logits);
      double worst = 0;
      for (uint32_t q_head = 0; q_head < kQHeads; ++q_head) {
        const auto tokens = attended(book.runs[0], seq, q_head / kGroup);
        CHECK(tokens.size() < 40);
        CHECK(tokens.back() == static_cast<uint32_t>(token));
        const auto want = expected(tokens, q_head);
        for (uint32_t d = 0; d < kDim; ++d)
          worst = larger_or_nan(worst, std::abs(want[d] - double{last[q_head * kDim + d]}));
      }
      CHECK(worst < 1e-5);
      book.runs.clear();
    }
  }
}

TEST_CASE("a follower of a layer group keeps to its own restriction") {
  Bench bench(8, 2);
  const std::string toml =
      "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\nlayer_step = 3\n"
      "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 14\nwindow_size = 6\nkernel_size = 5\n"
      "mode = 'retrieve'\n" +
      kRecording;
  const auto engine = bench.engine(toml);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(75, 6));
  book.armed = 1;
  decode(*engine, seq, 5);
  // SnapKV attends to all it may reach: each layer to its own votes, leader or not.
  REQUIRE(book.runs.size() == 3);
  const auto of = [&](uint32_t layer) { return attended(book.runs[layer], seq, 0); };
  CHECK(of(0).size() == 4 + 14 + 9);
  CHECK(of(1).size() == 4 + 14 + 9);
  CHECK(of(1) != of(0));
  CHECK(of(2) != of(0));
}

TEST_CASE("who scores keys as attention sees them refuses keys that are kept before RoPE") {
  const std::string infllm = "[[selector]]\nplugin = 'kvasir.infllm'\nbudget_tokens = 64\n",
                    dynamic = "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\n";
  for (const std::string plugin : {"twilight", "infinigen", "magicpig", "oracle"}) {
    CAPTURE(plugin);
    Bench bench(8, 2);
    const std::string last = "[[selector]]\nplugin = 'kvasir." + plugin + "'\n";
    const auto check = [&](const std::string& toml) {
      const std::string text = error_of([&] { bench.engine(toml); });
      CAPTURE(text);
      CHECK(text.find("kvasir." + plugin) != std::string::npos);
      CHECK(text.find("it needs keys with their rotation: cache.positions = \"true\"") !=
            std::string::npos);
    };
    check("[cache]\npositions = 'slot'\n" + last);
    check("[cache]\nblock_size = 8\n" + infllm + last + dynamic);
    bench.engine(last);  // nothing else is wrong with it
  }
}
