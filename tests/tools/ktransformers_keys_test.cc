// KTransformers' keys in a strategy: the same plugins and options as ours spelled out.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/ktransformers_keys.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/process.h"

namespace {
using namespace kvasir;

StrategyConfig imported_strategy(const std::string& toml,
                                 const std::vector<Override>& overrides = {}) {
  StrategyConfig defaults;
  defaults.representative_types = tool::representative_types();
  StrategyConfig made = parse_strategy(toml, "test.toml", overrides, defaults);
  tool::apply_preselect_keys(made);
  return made;
}

std::string words(const StrategyConfig& strategy) {
  std::string text;
  for (const PluginSection& selector : strategy.selectors) {
    text += selector.plugin.value + " ";
    for (const OptionSetting& option : selector.options) text += option.key + " ";
  }
  return text + (strategy.representative ? strategy.representative->plugin.value : "");
}

const std::string kTopK = "[selector]\nplugin = 'block_topk'\nsecond_block_count = 4\n";

}  // namespace

TEST_SUITE_BEGIN("tools/ktransformers_keys");

TEST_CASE("every type of representative is a plugin") {
  const std::pair<const char*, const char*> types[] = {
      {"MAX", "max"},      {"BLOCK_MAX", "max"},   {"MEAN", "mean"},   {"BLOCK_MEAN", "mean"},
      {"QUEST", "minmax"}, {"DYNAMIC", "dynamic"}, {"FIXED", "fixed"}, {"FIX", "fixed"}};
  for (const auto& [type, plugin] : types)
    CHECK(words(imported_strategy("[representative]\nrepresentative_type = '" + std::string(type) +
                                  "'\n")) == "kvasir." + std::string(plugin));
}

TEST_CASE("preselect_block puts a preselection before the selector it is said of") {
  const std::string plain = "block_topk second_block_count ";
  CHECK(words(imported_strategy(kTopK + "preselect_block = true\npreselect_block_count = 9\n"
                                        "kernel_size = 5\n")) ==
        "kvasir.preselect kernel_size preselect_block_count " + plain);
  CHECK(words(imported_strategy(kTopK + "preselect_block_count = 9\n")) ==
        "kvasir.preselect preselect_block_count " + plain);
  CHECK(words(imported_strategy(kTopK + "preselect_block = true\nmax_capacity_prompt = 900\n")) ==
        "kvasir.preselect max_capacity_prompt " + plain);
  CHECK(words(imported_strategy(kTopK + "preselect_block = false\npreselect_block_count = 9\n"
                                        "kernel_size = 5\n")) == plain);
  CHECK(words(imported_strategy(kTopK, {{"selector.preselect_block", "true", {}}})) ==
        "kvasir.preselect " + plain);
}

TEST_CASE("without them, and where they are the selector's own, nothing changes") {
  CHECK(words(imported_strategy(kTopK)) == "block_topk second_block_count ");
  CHECK(words(imported_strategy("[selector]\nplugin = 'snapkv'\nkernel_size = 5\n")) ==
        "snapkv kernel_size ");
  const std::string chain =
      "[[selector]]\nplugin = 'preselect'\npreselect_block = false\npreselect_block_count = 4\n"
      "[[selector]]\nplugin = 'block_topk'\n";
  CHECK(words(imported_strategy(chain)) ==
        "preselect preselect_block preselect_block_count block_topk ");
  CHECK_THROWS_WITH_AS(imported_strategy(chain + "preselect_block = true\n"),
                       doctest::Contains("test.toml:7:1: the chain preselects already"), Error);
  CHECK_THROWS_WITH_AS(imported_strategy(kTopK + "preselect_block = 1\n"),
                       "test.toml:4:1: preselect_block must be true or false", Error);
}

TEST_CASE("the tool takes every key of a configuration, under its newer and its older name") {
  const test::TempDir dir;
  for (const auto& [type, number, count] :
       {std::tuple{"representative_type", "representative_num", "second_block_count"},
        {"anchor_type", "anchor_num", "second_select_num"}}) {
    const std::string file = dir.write(
        "k.toml",
        "[cache]\nblock_size = 128\nsink_tokens = 128\nlocal_windows_len = 4096\n"
        "dense_layer_num = 2\nhead_select_mode = 'SHARED'\nlayer_step = 2\ntoken_step = 4\n"
        "chunk_size = 4096\nmax_seq_len = 32000\nthreads_num = 1\n[selector]\n"
        "plugin = 'block_topk'\npreselect_block = true\npreselect_block_count = 32\n"
        "kernel_size = 5\n" +
            std::string(count) + " = 16\n[representative]\n" + type + " = 'QUEST'\n" + number +
            " = 2\n[storage]\nplugin = 'dram'\nkv_type = 'Q8_0'\n");
    const auto checked = test::run_kvasir({"config", "check", "-s", file});
    CHECK(checked.code == 0);
    CHECK(checked.err.empty());
    const auto explained = test::run_kvasir({"config", "explain", "-s", file});
    for (const char* said : {"kvasir.preselect", "32 blocks x 128 = 4096 tokens",
                             "16 blocks x 128 = 2048 tokens", "kvasir.minmax", "\"q8_0\""}) {
      CAPTURE(said);
      CHECK(explained.out.find(said) != std::string::npos);
    }
  }
  const auto other = test::run_kvasir(
      {"config", "check", "-s", "ktransformers", "--set", "representative.anchor_type=BLOCK_MAX"});
  CHECK(other.code == 0);
}

TEST_SUITE_END();
