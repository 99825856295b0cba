// kvasir config import: KTransformers' configurations, and every way to get one wrong.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/ktransformers_import.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/config/strategy.h"
#include "core/error.h"
#include "tests/tools/process.h"

namespace {

using namespace kvasir;
using kvasir::test::Finished;
using kvasir::test::read_bytes;
using kvasir::test::run_kvasir;
using kvasir::test::TempDir;
using kvasir::tool::ImportedStrategy;

ImportedStrategy import(const std::string& yaml) {
  return tool::import_ktransformers(yaml, "c.yaml", {"f32", "f16", "bf16", "q8_0"});
}
StrategyConfig strategy_of(const std::string& yaml) {
  return parse_strategy(import(yaml).toml, "out.toml", {}, {});
}
std::string option(const PluginSection& section, const std::string& key) {
  for (const OptionSetting& o : section.options)
    if (o.key == key) {
      if (const auto* text = std::get_if<std::string>(&o.value)) return *text;
      return std::to_string(std::get<int64_t>(o.value));
    }
  return "";
}

// The settings of the article, under both generations of names, and inside a whole file.
const std::string kNewNames =
    "max_seq_len: 256000 # KVCache length\nblock_size: 128\nlocal_windows_len: 4096\n"
    "second_block_count: 96\nthreads_num: 64\nrepresentative_type: DYNAMIC\nkv_type: FP16\n"
    "dense_layer_num: 0\nrepresentative_num: 1\npreselect_block: False\n"
    "head_select_mode: SHARED\npreselect_block_count: 0\nlayer_step: 1\ntoken_step: 1\n";
const std::string kOldNames =
    "log:\n  dir: logs\n  level: \"debug\"\nserver:\n  port: 10002\n\nlong_context:\n"
    "  chunk_size: 4096\n  max_seq_len: 100000\n  block_size: 128\n  local_windows_len: 4096\n"
    "  second_select_num: 32\n  threads_num: 64\n  anchor_type: 'QUEST'\n  kv_type: FP32\n"
    "  dense_layer_num: 2\n  anchor_num: 2\n  preselect_block: True\n"
    "  head_select_mode: SEPARATE\n  preselect_block_count: 96\n  layer_step: 2\n"
    "  token_step: 4\nlocal_chat:\n  prompt_file: \"\"\n";

TEST_CASE("the article's settings: every key arrives") {
  const StrategyConfig s = strategy_of(kNewNames);
  CHECK(s.cache.max_seq_len.value == 256000);
  CHECK(s.cache.block_size.value == 128);
  CHECK(s.cache.sink_tokens.value == 128);
  CHECK(s.cache.window_tokens.value == 4096);
  CHECK(s.cache.threads_num.value == 64);
  CHECK(s.cache.dense_layers.value.empty());
  CHECK(s.cache.head_select_mode.value == HeadSelectMode::kShared);
  CHECK(s.cache.layer_step.value == 1);
  CHECK(s.cache.token_step.value == 1);
  CHECK(s.cache.chunk_size.value == 4096);  // theirs where nothing is said
  REQUIRE(s.selectors.size() == 1);
  CHECK(s.selectors[0].plugin.value == "kvasir.block_topk");
  CHECK(option(s.selectors[0], "second_block_count") == "96");
  CHECK(s.representative->plugin.value == "kvasir.dynamic");
  CHECK(option(*s.representative, "representative_num") == "1");
  CHECK(option(s.storage, "type_k") == "f16");
  CHECK(option(strategy_of("kv_type: Q8_0\n").storage, "type_v") == "q8_0");
  CHECK(option(s.storage, "type_v") == "f16");
  CHECK(import(kNewNames).notes.empty());
}

TEST_CASE("a whole config.yaml under the older names, with preselection") {
  const StrategyConfig s = strategy_of(kOldNames);
  CHECK(s.cache.chunk_size.value == 4096);
  CHECK(s.cache.max_seq_len.value == 100000);
  CHECK(s.cache.dense_layers.value == std::vector<uint32_t>{0, 1});
  CHECK(s.cache.head_select_mode.value == HeadSelectMode::kSeparate);
  CHECK(s.cache.layer_step.value == 2);
  CHECK(s.cache.token_step.value == 4);
  REQUIRE(s.selectors.size() == 2);
  CHECK(s.selectors[0].plugin.value == "kvasir.preselect");
  CHECK(option(s.selectors[0], "preselect_block_count") == "96");
  CHECK(s.selectors[1].plugin.value == "kvasir.block_topk");
  CHECK(option(s.selectors[1], "second_block_count") == "32");
  CHECK(s.representative->plugin.value == "kvasir.minmax");
  CHECK(s.representative->options.empty());
  CHECK(option(s.storage, "type_v") == "f32");
}

TEST_CASE("Quest as KTransformers says it is Quest: minmax, per kv head, nothing before it") {
  const StrategyConfig s = strategy_of(
      "block_size: 16\nlocal_windows_len: 1\nsecond_block_count: 64\nrepresentative_type: QUEST\n"
      "representative_num: 2\npreselect_block: False\nhead_select_mode: SEPARATE\n");
  const StrategyConfig quest =
      load_strategy(KVASIR_SOURCE_DIR "/configs/strategies/quest.toml", {}, {});
  REQUIRE(s.selectors.size() == 1);
  CHECK(s.selectors[0].plugin.value == quest.selectors[0].plugin.value);
  CHECK(s.representative->plugin.value == quest.representative->plugin.value);
  CHECK(s.cache.block_size.value == quest.cache.block_size.value);
  CHECK(s.cache.window_tokens.value == quest.cache.window_tokens.value);
  CHECK(s.cache.head_select_mode.value == quest.cache.head_select_mode.value);
  CHECK(s.cache.gqa_reduce.value == quest.cache.gqa_reduce.value);
  CHECK(s.cache.dense_layers.value == quest.cache.dense_layers.value);  // theirs: 2, too
  CHECK(s.cache.sink_tokens.value == 64);  // forced there: blocks of 16 that hold 64 tokens
}

TEST_CASE("what is left out is KTransformers' default, and marked as such") {
  const ImportedStrategy imported = import("long_context:\n  block_size: 64\n  token_step:\n");
  const StrategyConfig s = parse_strategy(imported.toml, "out.toml", {}, {});
  CHECK(s.cache.window_tokens.value == 4096);
  CHECK(s.cache.dense_layers.value == std::vector<uint32_t>{0, 1});
  CHECK(s.cache.token_step.value == 1);
  REQUIRE(imported.notes.size() == 1);
  CHECK(imported.notes[0].find("c.yaml:3: token_step") == 0);
  CHECK(imported.toml.find("local_windows_len = 4096  # KTransformers' default") !=
        std::string::npos);
  CHECK(imported.toml.find("block_size = 64\n") != std::string::npos);
  CHECK(strategy_of("block_size: 1\n").cache.sink_tokens.value == 64);
  CHECK(strategy_of("block_size: 24\n").cache.sink_tokens.value == 48);
  CHECK(strategy_of("block_size: 33\n").cache.sink_tokens.value == 33);
  CHECK(strategy_of("block_size: 33\n").cache.token_step.value == 100);
}

TEST_CASE("a second selection above the first is none; kernel and capacity go along") {
  const ImportedStrategy off = import("second_block_count: 33\n");
  const StrategyConfig s = parse_strategy(off.toml, "out.toml", {}, {});
  REQUIRE(s.selectors.size() == 1);
  CHECK(s.selectors[0].plugin.value == "kvasir.preselect");
  CHECK(!s.representative);
  REQUIRE(off.notes.size() == 1);
  CHECK(off.notes[0].find("c.yaml:1: second_block_count") == 0);
  const StrategyConfig snap = strategy_of("kernel_size: 5\nmax_capacity_prompt: 8192\n");
  CHECK(option(snap.selectors[0], "kernel_size") == "5");
  CHECK(option(snap.selectors[0], "max_capacity_prompt") == "8192");
  CHECK(option(snap.selectors[0], "preselect_block_count").empty());
  CHECK(import("representative_num: 4\n").notes.size() == 1);  // not quite their sum
}

TEST_CASE("mistakes are named with their line") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"block_size: 128\nblok_size: 64\n",
       "c.yaml:2: unknown key blok_size (did you mean \"block_"},
      {"block_size: 128\nblock_size: 64\n", "c.yaml:2: block_size and block_size (line 1)"},
      {"anchor_num: 1\n\nrepresentative_num: 1\n", "c.yaml:3: representative_num and anchor_num"},
      {"block_size: 12x\n", "c.yaml:1: block_size = 12x must be an integer from 1 on"},
      {"block_size: -1\n", "c.yaml:1: block_size = -1 must be"},
      {"block_size: 99999999999\n", "must be an integer"},
      {"block_size: 0640\n", "begins with 0, which KTransformers reads as octal"},
      {"block_size:\n", "c.yaml:1: block_size has no value"},
      {"block_size: [1, 2]\n", "c.yaml:1: block_size must be a word or a number"},
      {"preselect_block: maybe\n", "c.yaml:1: preselect_block = maybe must be True or False"},
      {"preselect_block_count: 0\n", "c.yaml:1: preselect_block_count = 0 must be"},
      {"head_select_mode: INDIVIDUAL\n", "c.yaml:1: head_select_mode = INDIVIDUAL cannot be said"},
      {"\nanchor_type: MEDIAN\n", "c.yaml:2: anchor_type = MEDIAN is none of"},
      {"anchor_type: QUEST\n", "representative_num = 1 must be 2 with QUEST"},
      {"anchor_type: BLOCK_MAX\nanchor_num: 2\n", "c.yaml:2: anchor_num = 2 must be 1"},
      {"kv_type: Q4_0\n",
       "c.yaml:1: kv_type = Q4_0 cannot be stored: the storage holds f32, f16, bf16, q8_0"},
      {"kv_type: INT8\n", "c.yaml:1: kv_type = INT8"},
      {"max_capacity_prompt: 5000\npreselect_block_count: 9\n", "are one setting"},
      {"long_context:\n  block_size: 1\nlong_kontext:\n  block_size: 1\n",
       "c.yaml:3: unknown section long_kontext"},
      {"long_context:\n", "c.yaml:1: long_context has no keys"},
      {"long_context: {block_size: 1}\nlong_context: {block_size: 2}\n", "there twice"},
      {"- a\n- b\n", "no keys"},
      {"", "no keys"},
      {"a: [\n", "not valid YAML"},
      {"block_size: 1\n\tlayer_step: 2\n", "c.yaml:2"},
      {std::string(300000, '#'), "larger than 256 KiB"},
      {std::string(50000, '['), "not valid YAML"},
      {"? {a: b}\n: c\n", "must be a word"},
      {"\"\\x01\": c\n", "control"},
  };
  for (const auto& [yaml, words] : cases) {
    const std::string shown = yaml.substr(0, 60);
    CAPTURE(shown);
    try {
      import(yaml);
      FAIL_CHECK("was accepted");
    } catch (const Error& e) {
      CAPTURE(std::string(e.what()));
      CHECK(std::string(e.what()).find(words) != std::string::npos);
      CHECK(e.kind() == ErrorKind::kInput);
    }
  }
}

TEST_CASE("the command writes what config check accepts, or nothing") {
  const TempDir folder;
  const std::string yaml = folder.write("config.yaml", kOldNames);
  const std::string out = folder.path("strategy.toml");
  const Finished done = run_kvasir({"config", "import", yaml, "-o", out});
  CHECK(done.err == "");
  REQUIRE(done.code == 0);
  CHECK(done.out == "");
  CHECK(run_kvasir({"config", "check", out}).out == out + ": ok\n");
  CHECK(run_kvasir({"config", "import", yaml}).out == read_bytes(out));
  // What the reader lets pass and the strategy does not.
  const std::string bad = folder.write("bad.yaml", "block_size: 5000\n");
  const Finished refused = run_kvasir({"config", "import", bad, "-o", folder.path("no.toml")});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("bad.yaml") != std::string::npos);
  CHECK(refused.err.find("block_size = 5000") != std::string::npos);
  CHECK(folder.list().size() == 3);
  const std::string once = folder.write("once.yaml", "second_block_count: 33\n");
  const Finished noted = run_kvasir({"config", "import", once, "-o", out, "--force"});
  CHECK(noted.code == 0);
  CHECK(noted.err.starts_with("kvasir: note: " + once + ":1: second_block_count"));
  const auto said = nlohmann::json::parse(run_kvasir({"config", "explain", out, "--json"}).out);
  CHECK(said["attended"]["context"] == 32000);  // max_seq_len
  CHECK(said["attended"]["attended_tokens"] == 128 + 32 * 128 + 4096);
}

}  // namespace
