// kvasir ppl under strategies: what is scored is what the strategy attends to.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

struct Text {
  TinyModel model;
  std::string file;
  Text() {
    std::string words;
    for (int i = 0; i < 900; ++i) words.append(" ").append(std::to_string(i * i % 977));
    file = model.folder.write("text", words);
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"ppl",       "-m",  model.path, "-f",  file,   "-c", "200",
                                    "--compute", "f32", "-ctk",     "f32", "-ctv", "f32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Json ppl(std::vector<std::string> more) const {
    more.emplace_back("--json");
    return json_of(command(more));
  }
};

// A budget of 1 block beside the window, and one that covers the chunk.
std::vector<std::string> quest(const std::string& budget) {
  return {
      "-s", "quest", "--set", "cache.dense_layers=[]", "--set", "selector.budget_tokens=" + budget};
}

}  // namespace

TEST_SUITE_BEGIN("tools/ppl");

TEST_CASE("a strategy's perplexity is not dense attention's, and its budget decides") {
  const Text text;
  const Json dense = text.ppl({}), decoded = text.ppl({"--decode"});
  CHECK(dense["through"] == "prefill");
  CHECK(decoded["through"] == "decode");
  CHECK(dense["predicted_tokens"] == decoded["predicted_tokens"]);
  // Two orders of summing in float; the chunks do not see each other.
  CHECK(decoded["perplexity"].get<double>() ==
        doctest::Approx(dense["perplexity"].get<double>()).epsilon(1e-4));
  const Json all = text.ppl(quest("1024")), little = text.ppl(quest("16"));
  CHECK(all["mean_nll"] == decoded["mean_nll"]);
  CHECK(all["engaged"] == false);
  CHECK(little["engaged"] == true);
  CHECK(little["through"] == "decode");
  CHECK(little["predicted_tokens"] == dense["predicted_tokens"]);
  const double moved = little["mean_nll"].get<double>() - decoded["mean_nll"].get<double>();
  CHECK(std::abs(moved) > 1e-4);
}

TEST_CASE("a strategy that evicts at the end of the prompt is scored behind it") {
  const Text text;
  const std::vector<std::string> snapkv = {
      "-s", "snapkv", "--set", "selector.max_capacity_prompt=40", "--set", "cache.window_tokens=8"};
  const Json report = text.ppl(snapkv);
  CHECK(report["mean_nll"] != text.ppl({"--decode"})["mean_nll"]);
  CHECK(report["attended_percent"].get<double>() < 90);
}

TEST_CASE("who attends to nearly everything is said not to have engaged") {
  const Text text;
  const Finished idle = run_kvasir(text.command(quest("1024")));
  CHECK(has(idle.out, "did not engage: quest"));
  CHECK(has(idle.out, "--most-attended"));
  CHECK_FALSE(has(run_kvasir(text.command(quest("16"))).out, "did not engage"));
  auto strict = quest("16");
  strict.insert(strict.end(), {"--most-attended", "0.1"});
  CHECK(has(run_kvasir(text.command(strict)).out, "did not engage"));
  const std::vector<std::string> compare = {"compare",
                                            "-m",
                                            text.model.path,
                                            "-f",
                                            text.file,
                                            "-n",
                                            "4",
                                            "-s",
                                            "quest",
                                            "-s",
                                            "random",
                                            "--set",
                                            "selector.budget_tokens=64",
                                            "--set",
                                            "cache.window_tokens=16",
                                            "--set",
                                            "cache.sink_tokens=0",
                                            "--set",
                                            "cache.dense_layers=[]"};
  CHECK_FALSE(has(run_kvasir(compare).out, "did not engage"));
  auto wide = compare;
  wide.insert(wide.end(), {"--set", "selector.budget_tokens=100000"});
  CHECK(has(run_kvasir(wide).out, "did not engage: quest, random attended"));
}

TEST_SUITE_END();
