// Strategy files: what is accepted, where values come from, and the message of every mistake.
// SPDX-License-Identifier: Apache-2.0
#include "core/config/strategy.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "tests/core/config/support.h"

namespace {

using namespace kvasir;
using kvasir::test::error_of;
using kvasir::test::parse;
using kvasir::test::TempDir;
namespace fs = std::filesystem;

TEST_CASE("an empty text is the defaults") {
  const StrategyConfig config = parse("");
  CHECK(config.name == "test");
  CHECK(config.cache.block_size.value == 128);
  CHECK(config.cache.block_size.origin.text() == "default");
  REQUIRE(config.selectors.size() == 1);
  CHECK(config.selectors[0].plugin.value == "default_selector");
  CHECK(config.storage.plugin.value == "default_storage");
  CHECK_FALSE(config.representative.has_value());
}

TEST_CASE("every key of [cache] reaches its field, with its place") {
  const StrategyConfig config = parse(R"([cache]
block_size = 16
sink_tokens = 8
window_tokens = 256
window_mode = "prompt"
window_flush_tokens = 32
dense_layers = [3, 1, 3]
token_step = 2
layer_step = 4
head_select_mode = "SHARED"
gqa_reduce = "softmax_sum"
chunk_size = 1024
max_seq_len = 100000
threads_num = 12
bypass = false
foresee = "choose"
on_fault = "fail"
)");
  const CacheConfig& c = config.cache;
  CHECK(c.block_size.value == 16);
  CHECK(c.max_seq_len.value == 100000);
  CHECK(c.threads_num.value == 12);
  CHECK(c.sink_tokens.value == 8);
  CHECK(c.window_tokens.value == 256);
  CHECK(c.window_mode.value == WindowMode::kPrompt);
  CHECK(c.window_flush_tokens.value == 32);
  CHECK(c.dense_layers.value == std::vector<uint32_t>{1, 3});
  CHECK(c.token_step.value == 2);
  CHECK(c.layer_step.value == 4);
  CHECK(c.head_select_mode.value == HeadSelectMode::kShared);
  CHECK(c.gqa_reduce.value == GqaReduce::kSoftmaxSum);
  CHECK(c.chunk_size.value == 1024);
  CHECK(c.bypass.value == false);
  CHECK(c.foresee.value == Foresee::kChoose);
  CHECK(c.on_fault.value == OnFault::kFail);
  CHECK(c.window_tokens.origin.text() == "test.toml:4:1");
}

TEST_CASE("aliases set the field of the name they stand for") {
  for (const char* alias : {"n_sink", "start_size", "n_init", "sink_tokens"}) {
    CHECK(parse(std::string("[cache]\n") + alias + " = 9").cache.sink_tokens.value == 9);
  }
  for (const char* alias : {"recent_size", "n_local", "local_windows_len", "window_tokens"}) {
    CHECK(parse(std::string("[cache]\n") + alias + " = 9").cache.window_tokens.value == 9);
  }
  CHECK(parse("cache.dense_layer_num = 3").cache.dense_layers.value ==
        std::vector<uint32_t>{0, 1, 2});
  CHECK(parse("cache.head_select_mode = 'Separate'").cache.head_select_mode.value ==
        HeadSelectMode::kSeparate);
}

TEST_CASE("plugin tables keep their options as written") {
  const StrategyConfig config = parse(R"([[selector]]
plugin = "coarse"
[[selector]]
plugin = "fine"
b = true
i = -3
f = 2.5
s = "x"
l = [1, 2]
[representative]
plugin = "mean"
[storage]
plugin = "dram"
[attention]
plugin = "cpu"
path = "lib/cpu.so"
)");
  REQUIRE(config.selectors.size() == 2);
  const PluginSection& fine = config.selectors[1];
  CHECK(fine.plugin.value == "fine");
  REQUIRE(fine.options.size() == 5);
  CHECK(std::get<bool>(fine.options[0].value));
  CHECK(std::get<int64_t>(fine.options[1].value) == -3);
  CHECK(std::get<double>(fine.options[2].value) == 2.5);
  CHECK(std::get<std::string>(fine.options[3].value) == "x");
  CHECK(std::get<std::vector<int64_t>>(fine.options[4].value) == std::vector<int64_t>{1, 2});
  CHECK(fine.options[4].origin.text() == "test.toml:9:1");
  CHECK(config.representative->plugin.value == "mean");
  CHECK(config.storage.kind == Kind::kStorage);
  CHECK(config.attention.path->value == (fs::current_path() / "lib/cpu.so").string());
}

TEST_CASE("a table without plugin adds options to the default plugin") {
  const StrategyConfig config = parse("[storage]\ndtype = 'f16'");
  CHECK(config.storage.plugin.value == "default_storage");
  CHECK(config.storage.options.size() == 2);
  CHECK(parse("[storage]\nplugin = 'x'").storage.options.empty());
}

struct Mistake {
  const char* toml;
  std::vector<const char*> said;  // every piece the message must hold
};

TEST_CASE("every mistake names file, line, column, key and remedy") {
  const Mistake mistakes[] = {
      {"[cache]\nwindow_token = 5", {"test.toml:2:1", "window_token ", "\"window_tokens\""}},
      {"[cache]\n\n  windwo_tokens = 5", {"test.toml:3:3", "\"window_tokens\""}},
      {"[cache]\nblock_size = 0", {"test.toml:2:1", "block_size = 0", "1..4096"}},
      {"[cache]\nblock_size = 4097", {"out of range"}},
      {"[cache]\nblock_size = 9223372036854775807", {"out of range"}},
      {"[cache]\nsink_tokens = -1", {"sink_tokens = -1", "0.."}},
      {"[cache]\nsink_tokens = 4.0", {"must be an integer", "a float (4.0)"}},
      {"[cache]\nsink_tokens = '4'", {"must be an integer", "a string"}},
      {"[cache]\nbypass = 1", {"true or false", "an integer (1)"}},
      {"[cache]\nwindow_mode = 'roling'", {"\"rolling\", \"prompt\"", "did you mean \"rolling\""}},
      {"[cache]\nwindow_mode = 3", {"must be a string"}},
      {"[cache]\ndense_layers = 3", {"list of layer numbers"}},
      {"[cache]\ndense_layers = [1, 'a']", {"test.toml:2:1", "list of integers"}},
      {"[cache]\ndense_layer_every = -1", {"test.toml:2:1", "out of range"}},
      {"[cache]\ndense_layers = [-1]", {"layer -1", "out of range"}},
      {"[cache]\ndense_layer_num = 5000", {"dense_layer_num", "out of range"}},
      {"[cache]\nlayer_step = 0", {"layer_step = 0"}},
      {"[cache]\nsink_tokens = 1\nn_init = 2",
       {"test.toml:3:1", "n_init", "sink_tokens", "keep one"}},
      {"[cache]\ndense_layers=[0]\ndense_layer_num=1", {"two names of one setting"}},
      {"[cache]\nwindow_flush_tokens = 4", {"test.toml:2:1", "window_mode = \"prompt\""}},
      {"[cache.window]\nx = 1", {"test.toml:1:", "window", "table"}},
      {"[[cache]]\nblock_size = 1", {"cache must be a table", "[cache]"}},
      {"cache = 3", {"test.toml:1:1", "[cache]"}},
      {"[~", {"test.toml:1:", "key"}},  // an assertion of toml++
      {"[selecter]\nplugin = 'x'", {"test.toml:1:2", "[selecter]", "did you mean \"selector\""}},
      {"window_tokens = 5", {"test.toml:1:1", "unknown key window_tokens", "below [cache]"}},
      {"[selector]\nplugin = 3", {"selector.plugin", "must be a string", "an integer"}},
      {"[selector]\nplugin = ''", {"selector.plugin", "not empty"}},
      {"[selector]\npath = 3\nplugin='x'", {"selector.path"}},
      {"[selector]\nplugin = 'x'\nwhen = 2020-01-01", {"test.toml:3:1", "when", "a date"}},
      {"[selector]\nplugin = 'x'\n[selector.more]\na = 1", {"more is a table"}},
      {"[[selector]]\nplugin = 'x'\n[[selector]]\na = 1", {"test.toml:3:", "names no plugin"}},
      {"[[storage]]\nplugin='a'\n[[storage]]\nplugin='b'",
       {"test.toml:1:", "[[storage]]", "does not say what it holds", "holds = \"window\""}},
      {"[[attention]]\nholds='window'\nplugin='a'\n[[attention]]\nplugin='b'",
       {"test.toml:4:", "[[attention]]", "does not say what it holds"}},
      {"[[storage]]\nholds='window'\nplugin='a'\n[[storage]]\nholds='window'\nplugin='b'",
       {"test.toml:4:", "both [[storage]] tables say holds = \"window\""}},
      {"[[storage]]\nholds='all'\nplugin='a'\n[[storage]]\nholds='window'\nplugin='b'",
       {"test.toml:2:1", "storage.holds is \"window\" or \"context\", not \"all\""}},
      {"[[storage]]\nholds=3\nplugin='a'\n[[storage]]\nholds='window'\nplugin='b'",
       {"test.toml:2:1", "not 3"}},
      {"[[storage]]\nplugin='a'\n[[storage]]\nplugin='b'\n[[storage]]\nplugin='c'",
       {"test.toml:5:", "a third [[storage]]", "two at most"}},
      {"[[storage]]\nholds='window'\nplugin='a'\n[[storage]]\nholds='context'\n",
       {"test.toml:4:", "names no plugin"}},
      {"[storage]\nplugin='a'\nholds='window'", {"test.toml:3:1", "holds is for two [[storage]]"}},
      {"[[attention]]\nholds='window'\nplugin='a'",
       {"test.toml:2:1", "holds is for two [[attention]]"}},
      {"[[storage]]\nholds='window'\nplugin='a'\n[[storage]]\nholds='context'\nplugin='b'",
       {"test.toml:3:1", "two [[storage]] tables and one [attention]", "write two [[attention]]"}},
      {"[[attention]]\nholds='window'\nplugin='a'\n[[attention]]\nholds='context'\nplugin='b'",
       {"test.toml:3:1", "two [[attention]] tables and one [storage]"}},
      {"[representative]\nx = 1", {"test.toml:1:1", "[representative] names no plugin"}},
      {"selector = []", {"[selector]"}},
      {"selector = [1]", {"must hold tables"}},
      {"include = 3", {"include must be a list of file names"}},
      {"include = ['a.toml']", {"test.toml:1:1", "include needs a file"}},
      {"[cache\nblock_size = 1", {"test.toml:1:7", "not valid TOML"}},
      {"[cache]\nblock_size = = 1", {"test.toml:2:14", "not valid TOML"}},
      {"[cache]\nblock_size = 1\nblock_size = 2", {"test.toml:3:1", "not valid TOML"}},
      {"[cache]\nblock_size = \xc3\xa9", {"test.toml:2:14", "not valid TOML"}},
      {"\xef\xbb\xba = 1", {"test.toml:1:1", "not valid TOML"}},
      {"\xff\xfe", {"test.toml:", "not valid TOML"}},
  };
  for (const Mistake& m : mistakes) {
    CAPTURE(m.toml);
    const std::string error = error_of([&] { parse(m.toml); });
    for (const char* piece : m.said) {
      INFO(error);
      CHECK(error.find(piece) != std::string::npos);
    }
  }
}

const char* const kHybrid = R"([[storage]]
holds = "context"
plugin = "dram"
type_k = "f16"
[[storage]]
holds = "window"
plugin = "device"
[[attention]]
holds = "window"
plugin = "gpu"
[[attention]]
holds = "context"
plugin = "cpu"
)";

TEST_CASE("two storages and two backends hold window and context, in any order") {
  const StrategyConfig config = parse(kHybrid);
  REQUIRE(config.is_hybrid());
  CHECK(config.storage.plugin.value == "dram");
  REQUIRE(config.storage.options.size() == 1);
  CHECK(config.storage.options[0].key == "type_k");
  CHECK(config.window_storage->plugin.value == "device");
  CHECK(config.window_storage->kind == Kind::kStorage);
  CHECK(config.window_storage->options.empty());
  CHECK(config.attention.plugin.value == "cpu");
  CHECK(config.window_attention->plugin.value == "gpu");
  CHECK_FALSE(parse("").is_hybrid());
}

TEST_CASE("overrides and explain name the two by what they hold") {
  const StrategyConfig config =
      parse(kHybrid, {{"storage.window.type_k", "f32", {}}, {"attention.context.x", "1", {}}});
  CHECK(config.window_storage->options[0].key == "type_k");
  CHECK(config.attention.options[0].key == "x");
  std::vector<std::string> keys;
  for (const ExplainLine& line : explain(config))
    if (line.key.starts_with("storage") || line.key.starts_with("attention"))
      keys.push_back(line.key + " = " + line.value);
  CHECK(keys == std::vector<std::string>{
                    "storage.window.plugin = \"device\"", "storage.window.type_k = \"f32\"",
                    "storage.context.plugin = \"dram\"", "storage.context.type_k = \"f16\"",
                    "attention.window.plugin = \"gpu\"", "attention.context.plugin = \"cpu\"",
                    "attention.context.x = 1"});
  const auto refused = [](const char* toml, const char* key) {
    return error_of([&] { parse(toml, {{key, "1", {}}}); });
  };
  CHECK(refused(kHybrid, "storage.type_k")
            .find("say which, as storage.window.type_k or "
                  "storage.context.type_k") != std::string::npos);
  CHECK(refused("", "storage.window.x").find("the strategy has one [storage]") !=
        std::string::npos);
  CHECK(refused(kHybrid, "storage.window.holds").find("stands in the TOML file") !=
        std::string::npos);
}

TEST_CASE("who attends prompts to the context is said of two backends only") {
  for (const auto& [value, wanted] : {std::pair{"window", PromptAttention::kWindow},
                                      {"context", PromptAttention::kContext},
                                      {"auto", PromptAttention::kAuto}}) {
    const std::string toml = std::string("[cache]\nprompt_attention = '") + value + "'\n";
    CHECK(parse((toml + kHybrid).c_str()).cache.prompt_attention.value == wanted);
    const std::string error = error_of([&] { parse(toml.c_str()); });
    CAPTURE(error);
    CHECK(error.empty() == (wanted == PromptAttention::kAuto));
    if (!error.empty()) CHECK(error.starts_with("test.toml:2:1: prompt_attention says which of "));
  }
}

TEST_CASE("one table takes the place of two") {
  const StrategyConfig two = parse(kHybrid);
  const StrategyConfig one =
      parse_strategy("[storage]\nplugin='a'\n[attention]\nplugin='b'", "over.toml", {}, two);
  CHECK_FALSE(one.is_hybrid());
  CHECK_FALSE(one.window_attention.has_value());
  CHECK(error_of([&] {
          parse_strategy("[storage]\ntype_k='f32'", "over.toml", {}, two);
        }).find("cannot say which of two") != std::string::npos);
}

TEST_CASE("size and depth are bounded") {
  CHECK(error_of([] { parse(std::string(300 * 1024, ' ')); }).find("KiB") != std::string::npos);
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  CHECK(error_of([&] { parse(deep + " = 1"); }).find("dots") != std::string::npos);
  CHECK_FALSE(error_of([] { parse("cache = " + std::string(10000, '[')); }).empty());
}

TEST_CASE("an include comes before the file that includes it") {
  const TempDir dir;
  dir.write("base.toml",
            "[cache]\nwindow_tokens = 1\nsink_tokens = 1\n"
            "[selector]\nplugin = 'old'\nbudget_tokens = 7\n"
            "[storage]\nplugin = 'disk'\n");
  const std::string path = dir.write("sub/run.toml",
                                     "include = ['../base.toml']\n"
                                     "[cache]\nwindow_tokens = 2\n"
                                     "[selector]\nbudget_tokens = 8\n"
                                     "[storage]\nplugin = 'dram'\n");
  const StrategyConfig config = load_strategy(path, {}, {});
  CHECK(config.name == "run");
  CHECK(config.cache.window_tokens.value == 2);
  CHECK(config.cache.sink_tokens.value == 1);
  CHECK(config.cache.sink_tokens.origin.text().find("base.toml:3:1") != std::string::npos);
  CHECK(config.selectors[0].plugin.value == "old");
  REQUIRE(config.selectors[0].options.size() == 1);
  CHECK(std::get<int64_t>(config.selectors[0].options[0].value) == 8);
  CHECK(config.storage.plugin.value == "dram");
}

TEST_CASE("include mistakes name the line that includes") {
  const TempDir dir;
  dir.write("a.toml", "\ninclude = 'b.toml'");
  dir.write("b.toml", "include = ['a.toml']");
  const std::string cycle = error_of([&] { load_strategy(dir.path("a.toml"), {}, {}); });
  CHECK(cycle.find("b.toml:1:1") != std::string::npos);
  CHECK(cycle.find("a.toml -> b.toml -> a.toml") != std::string::npos);

  dir.write("missing.toml", "\ninclude = ['none.toml']");
  const std::string missing = error_of([&] { load_strategy(dir.path("missing.toml"), {}, {}); });
  CHECK(missing.find("missing.toml:2:1") != std::string::npos);
  CHECK(missing.find("none.toml: no such file") != std::string::npos);

  dir.write("self.toml", "include = ['.']");
  CHECK(error_of([&] { load_strategy(dir.path("self.toml"), {}, {}); }).find("is a directory") !=
        std::string::npos);
  for (int i = 0; i < 12; ++i) {
    dir.write("deep" + std::to_string(i) + ".toml",
              "include = 'deep" + std::to_string(i + 1) + ".toml'");
  }
  CHECK(error_of([&] { load_strategy(dir.path("deep0.toml"), {}, {}); }).find("nested deeper") !=
        std::string::npos);
  CHECK(error_of([&] { load_strategy("/dev/zero", {}, {}); }).find("not a regular file") !=
        std::string::npos);
  CHECK(error_of([&] { load_strategy(dir.path("nowhere.toml"), {}, {}); }).find("no such file") !=
        std::string::npos);
}

TEST_CASE("a file may be included twice, but not a hundred times") {
  const TempDir dir;
  dir.write("leaf.toml", "[cache]\nblock_size = 8");
  CHECK(load_strategy(dir.write("two.toml", "include = ['leaf.toml', 'leaf.toml']"), {}, {})
            .cache.block_size.value == 8);
  std::string many = "include = [";
  for (int i = 0; i < 100; ++i) many += "'leaf.toml',";
  const std::string path = dir.write("many.toml", many + "]");
  CHECK(error_of([&] { load_strategy(path, {}, {}); }).find("more than 64 files") !=
        std::string::npos);
}

TEST_CASE("no file at all is the defaults") {
  const StrategyConfig config = load_strategy("", {}, kvasir::test::defaults());
  CHECK(config.name == "default");
  CHECK(config.storage.plugin.value == "default_storage");
}

TEST_CASE("explain lists every setting once, with its origin") {
  const auto lines = explain(parse("[cache]\nn_sink = 2\n[selector]\nplugin='q'\nbudget = 1.0"));
  const auto find = [&](const std::string& key) {
    for (const ExplainLine& line : lines) {
      if (line.key == key) return line.value + " | " + line.origin;
    }
    return std::string();
  };
  CHECK(find("cache.sink_tokens") == "2 | test.toml:2:1");
  CHECK(find("cache.window_mode") == "\"rolling\" | default");
  CHECK(find("cache.dense_layers") == "[] | default");
  CHECK(find("cache.dense_layer_every") == "0 | default");
  CHECK(find("cache.bypass") == "true | default");
  CHECK(find("cache.foresee") == "\"off\" | default");
  CHECK(find("cache.prompt_attention") == "\"auto\" | default");
  CHECK(find("selector.plugin") == "\"q\" | test.toml:4:1");
  CHECK(find("selector.budget") == "1.0 | test.toml:5:1");
  CHECK(find("storage.plugin") == "\"default_storage\" | default");
  CHECK(find("cache.n_sink").empty());
  size_t n_cache = 0;
  for (const ExplainLine& line : lines) n_cache += line.key.rfind("cache.", 0) == 0;
  CHECK(n_cache == 22);
}

TEST_CASE("representative_type names a plugin in the words of the defaults") {
  StrategyConfig defaults;
  defaults.representative_types = {{"quest", "org.bounds"}, {"mean", "org.mean"}};
  const auto strategy = [&](const std::string& toml, const std::vector<Override>& overrides = {}) {
    return parse_strategy(toml, "test.toml", overrides, defaults);
  };
  for (const char* key : {"representative_type", "anchor_type"}) {
    CAPTURE(key);
    const std::string said = std::string("[representative]\n") + key + " = ";
    const auto one = *strategy(said + "'QUEST'\nn = 2\n").representative;
    CHECK(one.plugin.value == "org.bounds");
    CHECK(one.plugin.origin.text() == "test.toml:2:1");
    CHECK(one.options.size() == 1);
    CHECK(error_of([&] { strategy(said + "'BEST'\n"); }) ==
          "test.toml:2:1: " + std::string(key) +
              " = \"BEST\" is none of mean, quest; another plugin goes under plugin = \"<id>\"");
    CHECK(error_of([&] { strategy(said + "3\n"); }).find("none of mean, quest") !=
          std::string::npos);
    CHECK(error_of([&] { strategy(said + "'mean'\nplugin = 'x'\n"); }) ==
          "test.toml:3:1: plugin and " + std::string(key) +
              " (test.toml:2:1) both name the plugin: keep one");
    // Over a file, whatever named its plugin; and the other way round.
    const std::string full = std::string("representative.") + key;
    const std::string file = "[representative]\nplugin = 'x'\n";
    CHECK(strategy(file, {{full, "Mean", {}}}).representative->plugin.value == "org.mean");
    CHECK(strategy("", {{full, "Mean", {}}}).representative->plugin.value == "org.mean");
    CHECK(strategy(said + "'mean'\n", {{"representative.plugin", "x", {}}})
              .representative->plugin.value == "x");
  }
  // Without such words, and in other tables, it is an option like any.
  CHECK(parse("[representative]\nplugin = 'p'\nanchor_type = 'mean'\n")
            .representative->options[0]
            .key == "anchor_type");
  CHECK(strategy("[selector]\nplugin = 'p'\nanchor_type = 'mean'\n").selectors[0].plugin.value ==
        "p");
  CHECK(error_of([&] { strategy("[cache]\nanchor_type = 'mean'\n"); }) ==
        "test.toml:2:1: unknown key anchor_type in [cache]: it belongs in [representative]");
}

TEST_CASE("kv_type of [storage] is both types; what is said later wins; other kinds may own it") {
  const auto types = [](const PluginSection& section) {
    std::string text;
    for (const OptionSetting& o : section.options)
      if (const auto* value = std::get_if<std::string>(&o.value))
        text += o.key + "=" + *value + " ";
    return text;
  };
  const StrategyConfig both = parse("[storage]\nplugin = 's'\nkv_type = 'FP16'\n");
  CHECK(types(both.storage) == "type_k=f16 type_v=f16 ");
  CHECK(both.storage.options[1].origin.text() == "test.toml:3:1");
  CHECK(types(parse("[storage]\nplugin = 's'\nkv_type = 'Q8_0'\ntype_v = 'f32'\n").storage) ==
        "type_k=q8_0 type_v=f32 ");
  Override override;
  override.key = "storage.kv_type";
  override.value = "FP32";
  CHECK(types(parse("[storage]\nplugin = 's'\ntype_k = 'bf16'\n", {override}).storage) ==
        "type_k=f32 type_v=f32 ");
  const StrategyConfig own = parse("[selector]\nplugin = 's'\nkv_type = 'FP16'\n");
  CHECK(types(own.selectors[0]) == "kv_type=FP16 ");
}

TEST_CASE("the nearest name forgives what fingers do") {
  const std::vector<std::string> names = {"budget_tokens", "block_size", "K", "method"};
  CHECK(nearest_name("budget_token", names) == "budget_tokens");
  CHECK(nearest_name("bugdet_tokens", names) == "budget_tokens");
  CHECK(nearest_name("BUDGET_TOKENS", names) == "budget_tokens");
  CHECK(nearest_name("blocksize", names) == "block_size");
  CHECK(nearest_name("budget", names) == "budget_tokens");
  CHECK(nearest_name("k", names) == "K");
  CHECK(nearest_name("temperature", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name(std::string(100000, 'a'), names).empty());
  CHECK(nearest_name("x", {}).empty());
}

}  // namespace
