// Blocks that leave memory for a file: every strategy gives the numbers of blocks that stay, bit
// for bit, and what was not asked for is not read.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8;
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\n";
const std::string kTypes = "type_k = 'f32'\ntype_v = 'f32'\n";
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 24\n"
    "[representative]\nplugin = 'kvasir.minmax'\n";
const std::string kInfLlm =
    "chunk_size = 40\nbypass = false\n"
    "[selector]\nplugin = 'kvasir.infllm'\ntopk = 3\nexc_block_size = 16\n"
    "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\nrepr_topk = 2\n";
const std::string kInfiniGen =
    "dense_layers = [0]\n"
    "[selector]\nplugin = 'kvasir.infinigen'\nbudget_tokens = 12\n";
const std::string kH2o = "[selector]\nplugin = 'kvasir.h2o'\nbudget_tokens = 24\n";
const std::string kSnapKv = "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 30\n";

// Every way to need less than a block: blocks or tokens of some heads, weights, keys before RoPE,
// heads packed apart.
const std::string kStreamingSlots = "positions = 'slot'\n[selector]\nplugin = 'kvasir.streaming'\n";
const std::vector<std::string> kAll = {kDense,  kTopK, kInfLlm,        kInfiniGen,
                                       kSnapKv, kH2o,  kStreamingSlots};

std::string tiered(uint32_t cached_blocks, const std::string& more = "") {
  return "[storage]\nplugin = 'kvasir.tiered'\n" + kTypes +
         "cached_blocks = " + std::to_string(cached_blocks) + "\n" + more;
}

struct Numbers {
  Logits logits;
  void add(std::vector<float> step) { logits.push_back(std::move(step)); }
};

// Two sequences in a batch, a fork, a cut, and another prompt.
Numbers story(Engine& engine) {
  Numbers out;
  const auto a = engine.open(), b = engine.open();
  out.add(prefill(engine, a, some_tokens(131, 1)));
  out.add(prefill(engine, b, some_tokens(58, 2)));
  for (TokenId token = 0; token < 12; ++token) {
    std::vector<float> logits(600);
    engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token}}, logits);
    out.add(logits);
  }
  const auto c = engine.fork(a);
  for (TokenId token = 20; token < 26; ++token) {
    out.add(decode(engine, c, token));
    out.add(decode(engine, a, token + 50));
  }
  engine.close(b);
  out.add(prefill(engine, c, some_tokens(40, 3)));
  return out;
}

// Bytes of the nameless file in `folder`, once it holds `bytes`: writing is another thread's work.
uint64_t written(const std::string& folder, uint64_t bytes) {
  namespace fs = std::filesystem;
  uint64_t size = 0;
  for (int i = 0; i < 5000 && size < bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (fs::read_symlink(entry.path(), error).string().starts_with(folder + "/") && !error)
        size = fs::file_size(entry.path(), error);
    }
  }
  return size;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/tiered");

TEST_CASE("blocks in a file give the numbers of blocks in memory") {
  for (const std::string& strategy : kAll)
    for (const uint32_t cached : {1u, 5u, 1000u}) {
      if (few_cases() && cached != 1) continue;
      CAPTURE(strategy);
      CAPTURE(cached);
      Bench bench(8, 2);
      EngineOptions options;
      options.max_sequences = 3;
      options.max_context = 512;
      const auto plain =
          bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.dram'\n" + kTypes, options);
      const std::string order = strategy == kDense  ? "fifo"
                                : strategy == kTopK ? "selector"
                                                    : "lru-s";
      const auto moving =
          bench.engine(kCache + strategy +
                           tiered(cached, cached == 5 ? "cache_strategy = '" + order + "'\n" : ""),
                       options);
      const Numbers want = story(*plain), got = story(*moving);
      REQUIRE(got.logits.size() == want.logits.size());
      for (size_t i = 0; i < want.logits.size(); ++i) {
        CAPTURE(i);
        CHECK(got.logits[i] == want.logits[i]);
      }
    }
}

TEST_CASE("q8_0, f16 and fp8 in a file give the numbers of those in memory") {
  for (const std::string type : {"f16", "q8_0", "fp8_e4m3"})
    for (const std::string& strategy : {kTopK, kInfiniGen, kSnapKv}) {
      CAPTURE(type);
      CAPTURE(strategy);
      Bench bench(8, 2, 32);
      EngineOptions options;
      options.max_sequences = 3;
      options.max_context = 512;
      const std::string types = "type_k = '" + type + "'\ntype_v = '" + type + "'\n";
      const auto plain =
          bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.dram'\n" + types, options);
      const auto moving = bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.tiered'\n" +
                                           types + "cached_blocks = 2\ngap_bytes = 0\n",
                                       options);
      CHECK(story(*moving).logits == story(*plain).logits);
    }
}

TEST_CASE("blocks in a chain of files give the numbers of blocks in memory") {
  for (const std::string& strategy : kAll) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    EngineOptions options;
    options.max_sequences = 3;
    options.max_context = 512;
    TempDir second, third;
    const auto folder = [](TempDir& dir) {
      return std::filesystem::path(dir.path("x")).parent_path().string();
    };
    const auto plain =
        bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.dram'\n" + kTypes, options);
    const auto moving = bench.engine(
        kCache + strategy +
            tiered(1, "folder_limit_bytes = 40000\nfolder_2 = '" + folder(second) +
                          "'\nfolder_2_limit_bytes = 60000\nfolder_3 = '" + folder(third) + "'\n"),
        options);
    CHECK(story(*moving).logits == story(*plain).logits);
  }
}

TEST_CASE("nobody reads a token that was not asked for") {
  uint64_t n_partial = 0;
  for (const std::string& strategy : kAll) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    EngineOptions options;
    options.max_sequences = 3;
    options.max_context = 512;
    const auto plain =
        bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.dram'\n" + kTypes, options);
    const auto poisoned = bench.engine(
        kCache + strategy + "[storage]\nplugin = 'kvasir.test.poison_storage'\n", options);
    CHECK(story(*poisoned).logits == story(*plain).logits);
    const auto leases = [&](uint32_t item) {
      return static_cast<uint64_t>(probe(*poisoned->pipeline().storage, item));
    };
    if (strategy != kDense) CHECK(leases(0) > 0);
    n_partial += leases(0);
    const auto a = poisoned->open(), b = plain->open();
    CHECK(prefill(*poisoned, a, some_tokens(90, 9)) == prefill(*plain, b, some_tokens(90, 9)));
    CHECK(decode(*poisoned, a, 5) == decode(*plain, b, 5));
    const auto copy = poisoned->load(poisoned->save(a), "saved");
    CHECK(decode(*poisoned, copy, 6) == decode(*plain, b, 6));
  }
  CHECK(n_partial > 100);
}

TEST_CASE("a cut goes back into blocks that had left, and a saved sequence holds them") {
  for (const std::string& strategy : {kTopK, kInfiniGen}) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    const auto plain = bench.engine(kCache + strategy),
               moving = bench.engine(kCache + strategy + tiered(1));
    const auto a = plain->open(), b = moving->open();
    CHECK(prefill(*plain, a, some_tokens(130, 5)) == prefill(*moving, b, some_tokens(130, 5)));
    for (const uint32_t kv_len : {129u, 61u, 5u}) {  // inside the open block, a full one, the first
      CAPTURE(kv_len);
      plain->truncate(a, kv_len);
      moving->truncate(b, kv_len);
      for (TokenId token = 0; token < 10; ++token)
        CHECK(decode(*plain, a, token) == decode(*moving, b, token));
      const auto saved = moving->save(b);
      const auto copy = moving->load(saved, "saved");
      CHECK(decode(*moving, copy, 7) == decode(*plain, a, 7));
      plain->truncate(a, kv_len + 10);
      moving->close(copy);
      CHECK(prefill(*plain, a, some_tokens(100, 6)) == prefill(*moving, b, some_tokens(100, 6)));
    }
  }
}

// What must come from the file, told from outside: which tokens of which heads each layer attends
// to in each step, and the rule by which blocks leave. Full blocks only; a partly present one takes
// the memory of a whole one, as all of its bytes lie in one page.
class FileOracle {
 public:
  FileOracle(uint32_t n_layers, uint32_t cached_blocks, uint64_t gap_bytes)
      : cached_(cached_blocks), gap_(gap_bytes), layers_(n_layers) {}

  // After a prompt of n full blocks the ones that came last are there.
  void prompt(uint32_t n) {
    for (auto& layer : layers_) {
      layer.clear();
      for (uint32_t block = n - std::min(n, cached_); block < n; ++block)
        layer[block] = {std::set<uint32_t>(all_.begin(), all_.end()), ++clock_};
    }
  }
  using Needed = std::map<uint32_t, std::set<uint32_t>>;  // block: head * kBlock + token
  // What is foreseen for a layer between its steps: all blocks, where it has lacked some so far.
  void foresee(uint32_t layer, const Needed& all, bool has_lacked) {
    for (const auto& [block, tokens] : all) {
      if (!has_lacked || layers_[layer].contains(block)) continue;
      read(layer, block, tokens);
      layers_[layer][block].used = ++clock_;
    }
  }
  // One layer of a step: what was foreseen comes first, then what is missing of all.
  void step(uint32_t layer, const Needed& foreseen, const Needed& all) {
    for (const auto& [block, tokens] : foreseen) read(layer, block, tokens);
    for (const auto& [block, tokens] : all) {
      uint32_t n = 0;
      for (const uint32_t token : tokens) n += !layers_[layer][block].present.contains(token);
      n_missed += n;
      n_leased += tokens.size();
      ++(n ? blocks_missed : blocks_hit);
      read(layer, block, tokens);
    }
    for (const auto& [block, tokens] : all) layers_[layer][block].used = ++clock_;
    end_step(layer);
  }
  // So does a lease that is given back between steps.
  void end_step(uint32_t layer) {
    while (layers_[layer].size() > cached_)
      layers_[layer].erase(std::min_element(
          layers_[layer].begin(), layers_[layer].end(),
          [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  uint64_t bytes = 0, n_missed = 0, n_leased = 0, blocks_hit = 0, blocks_missed = 0;

 private:
  static constexpr uint64_t kRecord = 2 * 16 * sizeof(float) + 8;
  struct State {
    std::set<uint32_t> present;
    uint64_t used = 0;
  };
  void read(uint32_t layer, uint32_t block, const std::set<uint32_t>& tokens) {
    State& state = layers_[layer][block];
    std::vector<uint32_t> run;
    const auto end_run = [&] {
      if (run.empty()) return;
      bytes += (run.back() - run.front() + 1) * kRecord;
      for (uint32_t i = run.front(); i <= run.back(); ++i) state.present.insert(i);
      run.clear();
    };
    const std::set<uint32_t> before = state.present;
    for (const uint32_t token : tokens) {
      if (before.contains(token)) continue;
      if (!run.empty() && (token - run.back() - 1) * kRecord > gap_) end_run();
      run.push_back(token);
    }
    end_run();
  }

  uint32_t cached_;
  uint64_t gap_, clock_ = 0;
  std::vector<std::map<uint32_t, State>> layers_;
  const std::vector<uint32_t> all_ = between(0, 2 * kBlock);
};

std::set<std::string> threads() {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    out.insert(entry.path().string());
  return out;
}
// Until none of them has anything to do. A thread that was told to work is not asleep any more.
void wait_until_asleep(const std::set<std::string>& list) {
  for (int n_asleep = 0; n_asleep < 2;) {
    bool asleep = true;
    for (const std::string& thread : list) {
      std::ifstream file(thread + "/stat");
      const std::string stat{std::istreambuf_iterator<char>(file), {}};
      asleep = asleep && stat.substr(stat.rfind(')') + 2, 1) == "S";
    }
    n_asleep = asleep ? n_asleep + 1 : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

TEST_CASE("what comes from the file is what an account from outside says, token by token") {
  constexpr uint32_t kPrompt = 25 * kBlock, kSteps = 7;  // no block fills up while decoding
  for (const std::string& strategy : {kDense, kTopK, kInfiniGen})
    for (const uint32_t cached : {1u, 6u, 12u, 100u})
      for (const uint32_t gap : {0u, 300u}) {
        CAPTURE(strategy);
        CAPTURE(cached);
        CAPTURE(gap);
        Bench bench(8, 2);
        std::vector<std::array<std::vector<uint32_t>, 2>> seen(3);
        std::set<std::string> transfers;  // threads of the storage
        EngineOptions options;
        options.on_attend = [&](uint32_t layer, uint64_t, uint32_t head,
                                std::span<const uint32_t> tokens) {
          seen[layer][head].assign(tokens.begin(), tokens.end());
          if (head == 0) wait_until_asleep(transfers);  // what was foreseen for the next layer
        };
        const TempDir folder;
        const std::string path = std::filesystem::path(folder.path("x")).parent_path().string();
        const std::set<std::string> before = threads();
        // What is foreseen of one dense layer behind another is on its way when that asks for it.
        const std::string more = strategy == kDense ? "read_ahead = false\n" : "";
        const auto engine =
            bench.engine(kCache + strategy +
                             tiered(cached, more + "folder = '" + path +
                                                "'\nio = 'thread'\ndirect = false\ngap_bytes = " +
                                                std::to_string(gap) + "\n"),
                         options);
        const auto seq = engine->open();
        prefill(*engine, seq, some_tokens(kPrompt, 5));
        constexpr uint64_t kFile = uint64_t{3} * 25 * 2 * kBlock * (2 * 16 * sizeof(float) + 8);
        REQUIRE(written(path, kFile) == kFile);
        for (const std::string& thread : threads())
          if (!before.contains(thread)) transfers.insert(thread);
        REQUIRE(transfers.size() == 1);
        FileOracle oracle(3, cached, gap);
        oracle.prompt(25);
        SequenceId child = 0;
        bool has_lacked = false;  // the child, in its first layer
        FileOracle::Needed whole;
        for (uint32_t token = 0; token < kPrompt; ++token)
          for (uint32_t head = 0; head < 2; ++head)
            whole[token / kBlock].insert(head * kBlock + token % kBlock);
        for (uint32_t i = 0; i < 4 * kSteps; ++i) {
          if (i % kSteps == 0) {
            child = engine->fork(seq);
            has_lacked = false;
          }
          decode(*engine, child, static_cast<TokenId>(3 * i));
          wait_until_asleep(transfers);  // what was foreseen for the first layer of the next step
          const uint32_t window = kPrompt + i % kSteps + 1 - 16;
          for (uint32_t layer = 0; layer < 3; ++layer) {
            FileOracle::Needed foreseen, all;
            for (uint32_t head = 0; head < 2; ++head)
              for (const uint32_t token : seen[layer][head]) {
                if (token >= kPrompt) continue;  // in the open block
                all[token / kBlock].insert(head * kBlock + token % kBlock);
                if (strategy == kInfiniGen && layer > 0 && token >= 8 && token < window)
                  foreseen[token / kBlock].insert(head * kBlock + token % kBlock);
              }
            const uint64_t n_before = oracle.n_missed;
            oracle.step(layer, foreseen, all);
            if (layer == 0) has_lacked |= oracle.n_missed > n_before;
          }
          if (strategy == kInfiniGen) oracle.foresee(0, whole, has_lacked);
          if (i % kSteps < kSteps - 1) continue;
          engine->close(child);  // and its open blocks
          for (uint32_t layer = 0; layer < 3; ++layer) oracle.end_step(layer);
        }
        const Engagement& e = engine->decode_engagement();
        REQUIRE(e.tiers.size() == 2);
        CHECK(e.tiers[1].tier == "file");
        CHECK(e.tiers[1].bytes_read == oracle.bytes);
        CHECK(e.tiers[1].tokens == oracle.n_missed);
        CHECK(e.tiers[0].tokens == oracle.n_leased);
        CHECK(e.blocks_hit == oracle.blocks_hit);
        CHECK(e.blocks_missed == oracle.blocks_missed);
        CHECK(e.tiers[1].bytes_written + engine->prefill_engagement().tiers[1].bytes_written ==
              kFile);
        CHECK(engine->prefill_engagement().tiers[1].bytes_read == 0);
        if (cached == 100) CHECK(oracle.bytes == 0);
        if (cached == 1) CHECK(oracle.bytes > 0);
      }
}

TEST_CASE("a storage of one tier counts none") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kTopK + "[storage]\nplugin = 'kvasir.dram'\n" + kTypes);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(50, 5));
  CHECK(engine->prefill_engagement().tiers.empty());
  CHECK(engine->prefill_engagement().blocks_hit == 0);
}

TEST_CASE("a folder that takes no file is refused by name, before anything is read") {
  Bench bench(8, 2);
  const std::string strategy =
      kCache + kDense + tiered(1, "folder = '/proc/kvasir-has-no-folder-here'\n");
  CHECK_THROWS_WITH_AS(bench.engine(strategy), doctest::Contains("set folder to one that does"),
                       Error);
}
