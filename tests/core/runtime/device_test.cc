// Blocks, records, scores and attention on a device whose memory the core cannot touch: the numbers
// of the same plugins in host memory, and a sentence for what cannot work together.
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tests/core/runtime/story.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\nchunk_size = 23\n";
const std::string kDense = "[selector]\nplugin = 'dense'\n";

std::string device_storage(const std::string& more = "") {
  return "[storage]\nplugin = 'kvasir.test.device_storage'\n" + more;
}
std::string device_attention(const std::string& inner = "reference") {
  return "[attention]\nplugin = 'kvasir.test.device_attention'\ninner = '" + inner + "'\n";
}
std::string host(const std::string& attention = "reference", const std::string& type = "f32") {
  return "[storage]\nplugin = 'dram'\ntype_k = '" + type + "'\ntype_v = '" + type +
         "'\n[attention]\nplugin = '" + attention + "'\n";
}

// A touch of the device's pages from outside ends the process, with a name.
constexpr int kTouched = 42;
uint64_t device_begin = 0, device_end = 0;

void on_fault(int number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uint64_t>(info->si_addr);
  if (at < device_begin || at >= device_end) {
    signal(number, SIG_DFL);
    return;  // the instruction faults again
  }
  const char text[] = "the core touched device memory outside of a device plugin's call\n";
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
  _exit(kTouched);
}

std::unique_ptr<Engine> engine_of(Bench& bench, const std::string& toml) {
  EngineOptions options;
  options.max_sequences = 4;
  return bench.engine(kCache + toml, options);
}

class TouchGuard {
 public:
  explicit TouchGuard(const Engine& engine) {
    const Instance& storage = *engine.pipeline().storage;
    device_begin = static_cast<uint64_t>(probe(storage, 0));
    device_end = device_begin + static_cast<uint64_t>(probe(storage, 1));
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~TouchGuard() { sigaction(SIGSEGV, &before_, nullptr); }
  TouchGuard(const TouchGuard&) = delete;

 private:
  struct sigaction before_ {};
};

struct Strategy {
  std::string name;
  std::string on_host, on_device;  // selector and representative
  bool can_cut = true;
};
const std::string kTopK = "[selector]\nplugin = 'block_topk'\nbudget_tokens = 24\n";
const std::string kDeviceTopK =
    "[selector]\nplugin = 'kvasir.test.device_selector'\nbudget_tokens = 24\n";
// Their update() reads K of the blocks that it is told of, on the host.
const std::string kInfiniGen =
    "[selector]\nplugin = 'infinigen'\nbudget_tokens = 12\nskew_tokens = 20\n";
const std::string kAttended =
    "[representative]\nplugin = 'dynamic'\nmass = 'window'\nrepresentative_num = 3\n";
std::string records(const std::string& inner, bool on_device) {
  if (!on_device) return "[representative]\nplugin = '" + inner + "'\n";
  return "[representative]\nplugin = 'kvasir.test.device_representative'\ninner = '" + inner +
         "'\n";
}
const Strategy kStrategies[] = {
    {"dense", kDense, kDense},
    {"streaming", "[selector]\nplugin = 'streaming'\n", "[selector]\nplugin = 'streaming'\n"},
    {"block_topk, scores on the device", kTopK + records("minmax", false),
     kTopK + records("minmax", true)},
    {"block_topk, selection on the device", kTopK + records("mean", false),
     kDeviceTopK + records("mean", true)},
    {"infinigen", kInfiniGen, kInfiniGen},
    {"infinigen, columns anew", kInfiniGen + "refresh_every = 4\n",
     kInfiniGen + "refresh_every = 4\n"},
    {"twilight", "[selector]\nplugin = 'twilight'\n", "[selector]\nplugin = 'twilight'\n"},
    {"block_topk, records on the host", kTopK + records("minmax", false),
     kTopK + records("minmax", false)},
    {"block_topk, keys that are attended", kTopK + kAttended, kTopK + kAttended},
    {"snapkv", "[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n",
     "[selector]\nplugin = 'snapkv'\nbudget_tokens = 30\n", false},
    {"h2o", "[selector]\nplugin = 'h2o'\nbudget_tokens = 20\n",
     "[selector]\nplugin = 'h2o'\nbudget_tokens = 20\n", false},
};

std::string refusal_of(const std::string& toml) {
  Bench bench;
  try {
    engine_of(bench, toml);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kInput ? e.what()
                                         : std::string("not an input error: ") + e.what();
  }
  return "accepted";
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/device");

TEST_CASE("a device gives the numbers of host memory, bit for bit, and no byte of it is touched") {
  for (const Strategy& s : kStrategies)
    for (const std::string type : {"f32", "f16", "q8_0"}) {
      if (few_cases() && type != "f32" && s.name != "dense" && s.name != "snapkv") continue;
      // The guard's page faults are slow there, and need no other instructions.
      if (emulated() && (type != "f32" || !s.can_cut)) continue;
      CAPTURE(s.name);
      CAPTURE(type);
      Bench bench(8, 2, 32);
      const auto expected = engine_of(bench, s.on_host + host("reference", type));
      const auto engine = engine_of(
          bench, s.on_device + device_storage("type = '" + type + "'\n") + device_attention());
      const TouchGuard guard(*engine);
      CHECK(story(*engine, s.can_cut) == story(*expected, s.can_cut));
      CHECK(bench.log.empty());
      CHECK(engine->decode_engagement().fallbacks == 0);
      CHECK(engine->decode_engagement().tokens_attended ==
            expected->decode_engagement().tokens_attended);
      CHECK(engine->decode_engagement().device_copy_bytes > 0);
      CHECK(expected->decode_engagement().device_copy_bytes == 0);
      const Instance& storage = *engine->pipeline().storage;
      CHECK(probe(storage, 2) == 0);  // all blocks were dropped
      const bool packs = !s.can_cut;  // far more tokens than the open blocks of forks and cuts
      CHECK((probe(storage, 4) > 3 * 2 * 8 * 4) == packs);
      CHECK(probe(storage, 4) > 0);
    }
}

TEST_CASE("so does the arithmetic of cpu") {
  for (const Strategy& s : kStrategies) {
    CAPTURE(s.name);
    Bench bench;
    const auto expected = engine_of(bench, s.on_host + host("cpu"));
    const auto engine = engine_of(bench, s.on_device + device_storage() + device_attention("cpu"));
    const TouchGuard guard(*engine);
    const Logits a = story(*engine, s.can_cut), b = story(*expected, s.can_cut);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(max_difference(a[i], b[i]) <= 1e-5 * largest(b[i]));
  }
}

TEST_CASE("every copied byte of a decode step is counted") {
  Bench bench;  // 3 layers, 8 query heads, 2 kv heads, 16 wide, f32
  const auto engine = engine_of(bench, kDense + device_storage() + device_attention());
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(50));
  engine->reset_engagement();
  decode(*engine, seq, 5);
  const uint64_t kv = 2 * (16 + 16) * 4, q = 8 * 16 * 4, q_pos = 4, o = 8 * 16 * 4, lse = 8 * 4;
  CHECK(engine->decode_engagement().device_copy_bytes == 3 * (kv + q + q_pos + o + lse));
}

TEST_CASE(
    "of a block that only the host's plugins read, what they read of it travels, and is counted") {
  const std::string kept = "[selector]\nplugin = 'kvasir.test.told'\nunit = 'token'\n";
  struct Reader {
    std::string toml;
    uint64_t n_tokens;  // K and V that come to the host with the 87th and the 88th token, per layer
  };
  for (const Reader& reader : {Reader{kDense, 0},
                               {kInfiniGen, 2},
                               {"[selector]\nplugin = 'twilight'\n", 2},
                               {kTopK + records("mean", false), 8},  // the block, once it is full
                               {kept, 7 + 8}}) {                     // what the block holds
    CAPTURE(reader.toml);
    Bench bench;  // 3 layers, 8 query heads, 2 kv heads, 16 wide, f32
    const auto engine = engine_of(bench, reader.toml + device_storage() + device_attention());
    const TouchGuard guard(*engine);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(86));
    engine->reset_engagement();
    for (const TokenId token : {5, 6}) decode(*engine, seq, token);
    const uint64_t kv = 2 * (16 + 16), q = 8 * 16, q_pos = 1, o = 8 * 16, lse = 8;
    CHECK(engine->decode_engagement().device_copy_bytes ==
          3 * sizeof(float) * (2 * (kv + q + q_pos + o + lse) + reader.n_tokens * kv));
    CHECK(engine->decode_engagement().fallbacks == 0);
  }
}

// Where scores are written, and what is to be done with them before they are chosen among.
struct Way {
  const char* reduce;
  bool scores_there, chooses_there;
  std::string storage;
  uint64_t n_floats;  // of scores that travel in a layer, there and back
};
const std::string kHeld = "blocks = 'host'\n", kUnchecked = "checks = false\n";
const uint64_t kScores = 2 * 8;  // of kv heads and blocks
const Way kWays[] = {
    {"sum", true, true, "", 0},
    {"sum", true, true, kUnchecked, 2 * kScores},
    {"mean", true, true, "", 2 * kScores},
    {"max", true, true, "", 4 * kScores + kScores},  // of 4 query heads each
    {"sum", true, false, "", kScores},
    {"sum", false, true, kHeld, kScores},
};

TEST_CASE("scores travel only where host or selector need them elsewhere, and choose the same") {
  for (const Way& way : kWays) {
    CAPTURE(way.reduce);
    CAPTURE(way.n_floats);
    const std::string cache = "gqa_reduce = '" + std::string(way.reduce) + "'\n";
    const std::string selector = way.chooses_there ? kDeviceTopK : kTopK;
    const bool attends_there = way.storage != kHeld;
    Bench bench;  // 3 layers, 8 query heads, 2 kv heads, 16 wide, f32
    const auto expected = engine_of(bench, cache + kTopK + records("mean", false) + host());
    const auto engine = engine_of(
        bench, cache + selector + records("mean", way.scores_there) + device_storage(way.storage) +
                   (attends_there ? device_attention() : "[attention]\nplugin = 'reference'\n"));
    const TouchGuard guard(*engine);
    const auto run = [](Engine& of) {
      const SequenceId seq = of.open();
      prefill(of, seq, some_tokens(87));
      of.reset_engagement();
      return decode(of, seq, 5);
    };
    CHECK(run(*engine) == run(*expected));
    CHECK(bench.log.empty());
    CHECK(engine->decode_engagement().tokens_attended < 3 * 2 * 88);
    const uint64_t kv = 2 * (16 + 16), q = 8 * 16, q_pos = 1, o = 8 * 16, lse = 8;
    uint64_t n_floats = way.n_floats;
    if (attends_there) n_floats += kv + q + q_pos + o + lse;
    if (way.scores_there) n_floats += q;
    if (way.chooses_there) n_floats += q;
    CHECK(engine->decode_engagement().device_copy_bytes == 3 * n_floats * sizeof(float));
  }
}

TEST_CASE("what a plugin of the device gets wrong is found where it lies, and the step is dense") {
  Bench dense_bench;
  const auto dense = engine_of(dense_bench, kDense + device_storage() + device_attention());
  const auto run = [](Engine& engine) {
    const SequenceId seq = engine.open();
    prefill(engine, seq, some_tokens(87));
    return decode(engine, seq, 5);
  };
  const std::vector<float> want = run(*dense);
  const std::string nan_score = records("mean", true) + "nan_score = true\n";
  struct Fault {
    std::string strategy, storage, says;
  };
  const std::string no_score = "kvasir.test.device_representative: score: a score is not finite";
  for (const Fault& fault : {Fault{kDeviceTopK + nan_score, "", no_score},
                             Fault{kDeviceTopK + nan_score, kUnchecked, no_score},
                             Fault{kTopK + nan_score, "", no_score},
                             Fault{kDeviceTopK + "bad_index = true\n" + records("mean", true), "",
                                   "index 1000 lies outside the candidate range [1, 9)"}}) {
    CAPTURE(fault.strategy);
    Bench bench;
    const auto engine =
        engine_of(bench, fault.strategy + device_storage(fault.storage) + device_attention());
    const TouchGuard guard(*engine);
    CHECK(run(*engine) == want);
    CHECK(engine->decode_engagement().fallbacks == 3);
    REQUIRE(!bench.log.empty());
    CHECK_MESSAGE(bench.log[0].find(fault.says) != std::string::npos, bench.log[0]);
  }
}

TEST_CASE("what a run took of the device it gives back") {
  Bench bench;
  const auto left = [&] {
    const auto engine = engine_of(bench, kDense + device_storage() + device_attention());
    return probe(*engine->pipeline().storage, 3);
  };
  const double before = left();
  for (const Strategy& s : kStrategies) {
    const auto engine = engine_of(bench, s.on_device + device_storage() + device_attention());
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(70));
    decode(*engine, engine->fork(seq), 3);
    CHECK(probe(*engine->pipeline().storage, 3) > before);
  }
  CHECK(left() == before);
}

TEST_CASE("what cannot work together is refused with a sentence that names both and the remedy") {
  const std::string held = "; kvasir.test.device_storage holds them in device memory: take ";
  const std::string on_device = device_storage() + device_attention();
  CHECK(refusal_of(kDense + device_storage() + "[attention]\nplugin = 'cpu'\n") ==
        "kvasir.cpu reads K and V in host memory" + held +
            "an attention backend that reads device memory, or a storage that holds blocks in host "
            "memory");
  for (const std::string name : {"oracle", "magicpig"}) {
    CAPTURE(name);
    CHECK(refusal_of("[selector]\nplugin = '" + name + "'\nbudget_tokens = 16\n" + on_device) ==
          "kvasir." + name + " reads K and V in host memory" + held +
              "a selector that reads no keys as it chooses, or one that reads device memory, or a "
              "storage that holds blocks in host memory");
  }
  CHECK(refusal_of(kDense + device_attention()) ==
        "kvasir.test.device_attention reads K and V in device memory; kvasir.dram holds them in "
        "host memory: take an attention backend that reads host memory, or a storage that holds "
        "blocks in device memory");
  CHECK(refusal_of(kTopK + records("minmax", true)) ==
        "kvasir.test.device_representative reads K and V in device memory; kvasir.dram holds them "
        "in host memory: take a representative that reads host memory, or a storage that holds "
        "blocks in device memory");
  CHECK(refusal_of(kDeviceTopK + records("minmax", false)) ==
        "kvasir.test.device_selector reads device memory only, and storage kvasir.dram gives none "
        "(it has no kvasir.device-memory/1): take the storage of that device");
  CHECK(refusal_of("[selector]\nplugin = 'infllm'\ntopk = 3\n[representative]\nplugin = "
                   "'kvasir.test.device_representative'\n" +
                   on_device)
            .starts_with("kvasir.infllm needs keys that are stored before RoPE, which the host "
                         "turns as they are attended; kvasir.test.device_storage holds them in "
                         "device memory: take a storage that holds blocks in host memory"));
  const std::string slots =
      refusal_of("positions = 'slot'\n[selector]\nplugin = 'streaming'\n" + on_device);
  CHECK(slots.find("positions = \"slot\" needs keys that are stored before RoPE") !=
        std::string::npos);
}

// Run by the next test in a process of its own: the storage says that its blocks are host memory.
TEST_CASE("touching device memory" * doctest::skip()) {
  Bench bench;
  const auto engine = engine_of(bench, kDense + device_storage("blocks = 'claimed'\n") +
                                           "[attention]\nplugin = 'reference'\n");
  const TouchGuard guard(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(50));
}

TEST_CASE("a touch by the core is a fault, with its name") {
  char self[PATH_MAX] = {};
  REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command = std::string(self) + " -ns -tc='touching device memory' 2>&1";
  FILE* child = popen(command.c_str(), "r");
  REQUIRE(child != nullptr);
  std::string text;
  for (char part[256]; std::fgets(part, sizeof part, child);) text += part;
  const int status = pclose(child);
  CAPTURE(text);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kTouched);
  CHECK(text.find("the core touched device memory outside of a device plugin's call") !=
        std::string::npos);
}

TEST_SUITE_END();
