// Two storages with a backend each: the window's blocks in one, the context's in the other. The
// numbers and selections of one storage, and a sentence for what cannot work.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/attention_state.h"
#include "tests/core/runtime/story.h"
#include "tests/support/effort.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n";
const std::string kDense = "[selector]\nplugin = 'dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 24\n[representative]\nplugin = 'mean'\n";

std::string dram(const std::string& type = "f32") {
  return "plugin = 'dram'\ntype_k = '" + type + "'\ntype_v = '" + type + "'\n";
}
std::string one(const std::string& attention) {
  return "[storage]\n" + dram() + "[attention]\nplugin = '" + attention + "'\n";
}
// The lines of the four tables behind their headers and holds.
struct Halves {
  std::string name;
  std::string window_storage, window_attention, storage, attention;
  std::string toml() const {
    return "[[storage]]\nholds = 'window'\n" + window_storage + "[[storage]]\nholds = 'context'\n" +
           storage + "[[attention]]\nholds = 'window'\n" + window_attention +
           "[[attention]]\nholds = 'context'\n" + attention;
  }
};
const std::string kReference = "plugin = 'reference'\n", kCpu = "plugin = 'cpu'\n";
const std::string kDeviceStorage = "plugin = 'kvasir.test.device_storage'\n";
std::string device_attention(const std::string& inner) {
  return "plugin = 'kvasir.test.device_attention'\ninner = '" + inner + "'\n";
}
const Halves kHost = {"host", dram(), kReference, dram(), kReference};
const Halves kDevice = {"device", kDeviceStorage, device_attention("reference"), dram(),
                        kReference};
const Halves kHalves[] = {
    kHost,
    {"cpu and reference", dram(), kCpu, dram(), kReference},
    kDevice,
    {"device and cpu", kDeviceStorage, device_attention("reference"), dram(), kCpu},
    {"cpu and device", dram(), kCpu, kDeviceStorage, device_attention("reference")},
};

struct Seen {  // of one kv head, layer and call
  uint32_t layer;
  uint64_t seq;
  uint32_t head;
  std::vector<uint32_t> tokens;
  bool operator==(const Seen&) const = default;
};
struct Told {
  Logits logits;
  std::vector<Seen> seen;
};

std::unique_ptr<Engine> engine_of(Bench& bench, const std::string& toml, Told* told = nullptr) {
  EngineOptions options;
  options.max_sequences = 4;
  options.max_step_tokens = 64;
  if (told)
    options.on_attend = [told](uint32_t layer, uint64_t seq, uint32_t head,
                               std::span<const uint32_t> tokens) {
      told->seen.push_back({layer, seq, head, {tokens.begin(), tokens.end()}});
    };
  return bench.engine(kCache + toml, options);
}

struct Strategy {
  std::string name, toml;
  bool can_cut = true;
};
const Strategy kStrategies[] = {
    {"dense", kDense},
    {"streaming", "[selector]\nplugin = 'streaming'\n"},
    {"block_topk", kTopK},
    {"quest",
     "[selector]\nplugin = 'block_topk'\nbudget_blocks = 4\n[representative]\nplugin = "
     "'minmax'\n"},
    {"snapkv", "[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n", false},
    {"h2o", "[selector]\nplugin = 'h2o'\nbudget_tokens = 20\n", false},
};

void check_close(const Logits& a, const Logits& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(max_difference(a[i], b[i]) <= tolerance * std::max(1.0, largest(b[i])));
  }
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/hybrid");

TEST_CASE("two storages give the numbers and selections of one") {
  for (const Strategy& s : kStrategies) {
    CAPTURE(s.name);
    Bench bench;
    Told expected;
    expected.logits = story(*engine_of(bench, s.toml + one("reference"), &expected), s.can_cut);
    for (const Halves& halves : kHalves) {
      if (few_cases() && halves.name != kDevice.name) continue;
      CAPTURE(halves.name);
      Told told;
      told.logits = story(*engine_of(bench, s.toml + halves.toml(), &told), s.can_cut);
      check_close(told.logits, expected.logits, 1e-5);
      REQUIRE(told.seen.size() == expected.seen.size());
      CHECK((told.seen == expected.seen));
    }
  }
}

TEST_CASE("either backend attends prompts to the context, to the same numbers") {
  const auto prompts_by = [](const std::string& who) {
    return "prompt_attention = '" + who + "'\n";
  };
  const Halves recorded = {"", dram(), kCpu, dram(),
                           "plugin = 'kvasir.test.recording_attention'\n"};
  for (const char* selector : {"dense", "h2o"}) {  // by mass, too
    CAPTURE(std::string(selector));
    const std::string toml = "[selector]\nplugin = '" + std::string(selector) + "'\n" +
                             (std::string(selector) == "h2o" ? "budget_tokens = 20\n" : "") +
                             recorded.toml();
    Bench bench;
    Logits expected;
    for (const char* who : {"context", "window", "auto"}) {
      CAPTURE(std::string(who));
      const auto engine = engine_of(bench, prompts_by(who) + toml);
      recording_of(*engine).armed = 1;
      const auto seq = engine->open();
      Logits got = {prefill(*engine, seq, some_tokens(90))};
      uint32_t n_in_prompt = 0;
      for (const RecordedRun& run : recording_of(*engine).runs) n_in_prompt += run.in_prefill;
      CHECK((n_in_prompt != 0) == (std::string(who) == "context"));
      for (TokenId token = 0; token < 5; ++token) got.push_back(decode(*engine, seq, token));
      CHECK(recording_of(*engine).runs.size() == n_in_prompt + 5 * 3);
      if (expected.empty()) expected = got;
      check_close(got, expected, 1e-5);
    }
  }
}

TEST_CASE("what attention in double precision gives") {
  Bench bench;
  const auto engine = engine_of(bench, kDense + kDevice.toml());
  const auto tokens = some_tokens(70);
  TokenForward oracle(bench.tiny);
  const auto seq = engine->open();
  const auto all = [](uint32_t, uint32_t pos, uint32_t) { return everything(pos); };
  std::vector<float> expected;
  for (const TokenId token : tokens) expected = oracle.step(token, all);
  CHECK(max_difference(prefill(*engine, seq, tokens), expected) <= 1e-4);
  for (TokenId token = 0; token < 20; ++token)
    CHECK(max_difference(decode(*engine, seq, token), oracle.step(token, all)) <= 1e-4);
}

TEST_CASE("merged parts are one softmax over all keys") {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0.0, 3.0);
  constexpr size_t kDim = 5;
  for (const size_t n : {1u, 2u, 7u, 129u})
    for (size_t cut = 0; cut <= n; cut += std::max<size_t>(1, n / 5)) {
      std::vector<double> logit(n), v(n * kDim);
      for (double& x : logit) x = normal(random);
      for (double& x : v) x = normal(random);
      const auto attend = [&](size_t begin, size_t end, float* o) {
        double sum = 0, out[kDim] = {};
        for (size_t i = begin; i < end; ++i) {
          sum += std::exp(logit[i]);
          for (size_t d = 0; d < kDim; ++d) out[d] += std::exp(logit[i]) * v[i * kDim + d];
        }
        for (size_t d = 0; d < kDim; ++d) o[d] = sum > 0 ? static_cast<float>(out[d] / sum) : 0.0f;
        return sum > 0 ? static_cast<float>(std::log(sum)) : kernels::kEmptyLse;
      };
      float o[kDim], other[kDim], expected[kDim];
      float lse = attend(0, cut, o);
      const float other_lse = attend(cut, n, other), joint = attend(0, n, expected);
      kernels::merge_attention(o, &lse, other, other_lse, kDim);
      CHECK(std::abs(lse - joint) <= 1e-6 * std::max(1.0f, std::abs(joint)));
      for (size_t d = 0; d < kDim; ++d)
        CHECK(std::abs(o[d] - expected[d]) <= 1e-6 * std::max(1.0f, std::abs(expected[d])));
    }
}

TEST_CASE("blocks move when they leave the window, and each backend reads its own") {
  Bench bench;  // 3 layers, 2 kv heads, 16 wide, f32
  const auto engine = engine_of(bench, kDense + kHost.toml());
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(70));
  const uint64_t per_token = 3 * 2 * (16 + 16) * 4;
  for (uint32_t n = 71; n < 100; ++n) {  // tokens that the new one sees
    engine->reset_engagement();
    decode(*engine, seq, 5);
    const Engagement& e = engine->decode_engagement();
    const uint32_t context = (n - 16) / 8 * 8;
    CHECK(e.kv_bytes_read == n * per_token);
    CHECK(e.window_kv_bytes_read == (n - context) * per_token);
  }
  engine->truncate(seq, 40);  // its blocks stay in the context
  engine->reset_engagement();
  decode(*engine, seq, 5);
  CHECK(engine->decode_engagement().window_kv_bytes_read == per_token);
  engine->truncate(seq, 35);  // but for one that is written again
  engine->reset_engagement();
  decode(*engine, seq, 5);
  CHECK(engine->decode_engagement().window_kv_bytes_read == 4 * per_token);
}

TEST_CASE("the storages may hold unlike types") {
  const Halves halves = {"types", dram("f32"), kCpu, dram("f16"), kCpu};
  const Halves other = {"types", dram("bf16"), kCpu, dram("f32"), kCpu};
  for (const Strategy& s : kStrategies) {
    CAPTURE(s.name);
    Bench bench;
    const Logits expected = story(*engine_of(bench, s.toml + one("cpu")), s.can_cut);
    if (s.name != "dense" && s.name != "streaming") {  // what is chosen may change
      story(*engine_of(bench, s.toml + halves.toml()), s.can_cut);
      continue;
    }
    check_close(story(*engine_of(bench, s.toml + halves.toml()), s.can_cut), expected, 5e-3);
    check_close(story(*engine_of(bench, s.toml + other.toml()), s.can_cut), expected, 5e-2);
  }
}

TEST_CASE("tokens are verified and computed again as in one storage") {
  const auto run = [](const std::string& toml) {
    Bench bench;
    const auto engine = engine_of(bench, toml);
    const auto seq = engine->open();
    Logits out{prefill(*engine, seq, some_tokens(60))};
    for (TokenId round = 0; round < 9; ++round) {
      const TokenId drafts[] = {round, 11, 12, 13, 14};
      const int32_t parents[] = {-1, 0, 1, 0, 3};
      out.emplace_back(5 * 300);
      const StepItem items[] = {
          {.seq = seq, .tokens = drafts, .logits = out.back(), .parents = parents}};
      CHECK(engine->step(items)[0].text() == "");
      engine->accept(seq, round % 3 == 0 ? -1 : round % 5);
      out.push_back(decode(*engine, seq, 21));
    }
    const uint32_t again[] = {3, 17, 18, 40, 61, 63};
    out.emplace_back(300);
    const StepItem items[] = {{.seq = seq, .logits = out.back(), .recompute = again}};
    CHECK(engine->step(items)[0].text() == "");
    for (TokenId token = 0; token < 10; ++token) out.push_back(decode(*engine, seq, token));
    return out;
  };
  const Logits expected = run(kDense + one("reference"));
  check_close(run(kDense + kHost.toml()), expected, 1e-5);
  check_close(run(kDense + kDevice.toml()), expected, 1e-5);
}

TEST_CASE("strategies share both storages, and prompts") {
  for (const Halves& halves : {kHost, kDevice}) {
    Bench bench;
    const std::string evicts = "[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n";
    const auto tokens = some_tokens(90);
    const auto alone = engine_of(bench, evicts + halves.toml());
    const auto expected = alone->open();
    prefill(*alone, expected, tokens);

    const auto engine = engine_of(bench, kDense + halves.toml());
    const auto second =
        engine->add_strategy(bench.pipeline(bench.strategy(kCache + evicts + halves.toml())));
    const auto third =
        engine->add_strategy(bench.pipeline(bench.strategy(kCache + kDense + one("reference"))));
    REQUIRE(engine->can_follow(0, second));
    CHECK(!engine->can_follow(0, third));
    const auto leader = engine->open(), follower = engine->open(second);
    for (const auto seq : {leader, follower}) engine->begin_prompt(seq, 90);
    for (uint32_t at = 0; at < 90; at += 23) {  // as chunk_size cuts it
      const SequenceId followers[] = {follower};
      const StepItem items[] = {{.seq = leader,
                                 .tokens = std::span(tokens).subspan(at, std::min(23u, 90 - at)),
                                 .followers = followers}};
      CHECK(engine->step(items)[0].text() == "");
    }
    for (TokenId token = 0; token < 30; ++token) {
      CHECK(max_difference(decode(*engine, follower, token), decode(*alone, expected, token)) <=
            1e-5);
      decode(*engine, leader, token);
    }
  }
}

// kvasir.test.meeting_attention waits in run() for the other one.
TEST_CASE("both backends work at the same time where one of them works on a device") {
  const std::string meets = "plugin = 'kvasir.test.meeting_attention'\n";
  const Halves halves = {"", dram(), meets, dram(), meets};
  Bench bench;
  const auto expected = engine_of(bench, kDense + one("reference"));
  const auto engine = engine_of(bench, kDense + halves.toml());
  const double before = probe(*engine->pipeline().attention, 0);
  const auto a = expected->open(), b = engine->open();
  check_close({prefill(*engine, b, some_tokens(70))}, {prefill(*expected, a, some_tokens(70))},
              1e-5);
  for (TokenId token = 0; token < 5; ++token)
    check_close({decode(*engine, b, token)}, {decode(*expected, a, token)}, 1e-5);
  CHECK(probe(*engine->pipeline().attention, 0) == before + 5 * 3);  // layers

  // What either of them, or both, cannot do ends the step with a sentence.
  const std::string fails = meets + "answer = 'fail'\n";
  for (const auto& [window, context] : {std::pair{fails, meets}, {meets, fails}, {fails, fails}}) {
    const Halves broken = {"", dram(), window, dram(), context};
    const auto failing = engine_of(bench, kDense + broken.toml());
    const auto seq = failing->open();
    prefill(*failing, seq, some_tokens(70));
    std::string reason;
    try {
      decode(*failing, seq, 1);
    } catch (const PluginError& e) {
      reason = e.reason();
    }
    CHECK(reason.starts_with("as it was told"));
  }
}

TEST_CASE("what a run took of both storages it gives back") {
  Bench bench;
  const Halves halves[] = {kDevice, kHalves[4]};
  for (const Halves& h : halves) {
    for (const Strategy& s : kStrategies) {
      CAPTURE(s.name);
      const auto engine = engine_of(bench, s.toml + h.toml());
      const bool newest = h.name == kDevice.name;
      const Instance& device =
          newest ? *engine->pipeline().window_storage : *engine->pipeline().storage;
      const auto seq = engine->open();
      prefill(*engine, seq, some_tokens(100));
      for (TokenId token = 0; token < 20; ++token) decode(*engine, seq, token);
      if (newest) CHECK(probe(device, 2) <= 3 * 4);  // blocks of the window alone
      CHECK(probe(device, 2) > 0);
      engine->close(engine->fork(seq));
      engine->close(seq);
      CHECK(probe(device, 2) == 0);
    }
  }
}

TEST_CASE("what cannot work is refused with a sentence") {
  const auto refusal = [](const std::string& toml) {
    Bench bench;
    return error_of([&] { engine_of(bench, toml); });
  };
  CHECK(refusal("positions = 'slot'\n" + kDense + kHost.toml())
            .find("needs keys that are stored before RoPE, and two [[storage]] tables") !=
        std::string::npos);
  CHECK(refusal("[selector]\nplugin = 'infllm'\ntopk = 3\n[representative]\nplugin = 'mean'\n" +
                kHost.toml())
            .find("kvasir.infllm needs keys that are stored before RoPE") != std::string::npos);
  const Halves crossed = {"", kDeviceStorage, kCpu, dram(), kCpu};
  CHECK(refusal(kDense + crossed.toml())
            .starts_with("kvasir.cpu reads K and V in host memory; kvasir.test.device_storage "
                         "holds them in device memory"));
  CHECK(refusal("prompt_attention = 'window'\n" + kDense + kDevice.toml())
            .ends_with("prompt_attention = \"window\", and kvasir.test.device_attention cannot "
                       "read K and V where kvasir.dram holds them, or of their types: take "
                       "\"context\", or a backend for the window that reads both storages"));
  CHECK(refusal("[selector]\nplugin = 'oracle'\nbudget_tokens = 16\n" + kDevice.toml())
            .starts_with("kvasir.oracle reads K and V in host memory; kvasir.test.device_storage "
                         "holds them in device memory"));
  CHECK(refusal(kTopK + kHalves[4].toml()) == "");  // update() is given copies
  CHECK(refusal(kTopK + kDevice.toml()) == "");
}

TEST_SUITE_END();
