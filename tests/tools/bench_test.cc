// kvasir bench as a program uses it: what must hold in its table.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using Json = nlohmann::json;

// Small, but with one retrieval head of eight measured ones, so that DuoAttention fits too.
std::vector<std::string> bench(const std::vector<std::string>& more) {
  std::vector<std::string> out{"bench",  "recall", "-c",       "512", "-b",         "128",
                               "-n",     "4",      "--layers", "3",   "--head-dim", "32",
                               "--sink", "8",      "--window", "32",  "--json"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// Strategies that choose without looking at queries and keys. `random` draws for each step, layer
// and head; the other two make one choice for all of them.
bool is_blind(const std::string& name) {
  return name.starts_with("random") || name == "streaming" || name == "duoattention";
}

TEST_CASE("bench recall: at one number of tokens, oracle >= all others >= random") {
  const Json report = json_of(bench({}));
  const double target = report["tokens_target"];
  CHECK(target == 8 + 32 + 128);
  std::map<std::string, double> oracle;  // by unit and scope
  for (const Json& r : report["strategies"])
    if (const std::string name = r["strategy"]; name.starts_with("oracle"))
      oracle[r["unit"].get<std::string>() + r["scope"].get<std::string>()] = r["captured_mass"];
  REQUIRE(oracle.size() == 4);
  std::set<std::string> names;
  for (const Json& r : report["strategies"]) {
    const std::string name = r["strategy"], unit = r["unit"], scope = r["scope"];
    CAPTURE(name);
    names.insert(name);
    const double captured = r["captured_mass"], best = r["best_mass"], random = r["random_mass"];
    CHECK(r["fallbacks"] == 0);
    CHECK(captured <= best + 1e-6);
    if (name == "dense") {
      CHECK(captured == doctest::Approx(1.0));
      continue;
    }
    // alpha leaves infinigen fewer tokens than any budget allows, as the method says.
    CHECK((r["at_target"] == true) == (name != "infinigen"));
    const double attended = r["tokens_attended"];
    if (name == "infinigen")
      CHECK(attended < target);
    else
      CHECK(std::abs(attended - target) <= (unit == "block" ? 16 : 0.02 * target));
    // Sets of query heads are counted as unions per kv head. What 2 % of the tokens, or half a
    // block, more or less may catch: 2 % of the mass.
    CHECK(captured <= oracle.at(unit + (scope == "query head" ? "kv head" : scope)) + 0.02);
    // Of 8 needles with half of the mass a draw of a quarter of the context finds about two, so one
    // draw strays by some 8 % from its mean: three times that bounds whoever draws once, and
    // whoever looks must be above twice that.
    const double deviation = r["random_deviation"], stray = 3 * deviation;
    if (name.starts_with("oracle"))
      CHECK(captured == doctest::Approx(best).epsilon(1e-3));
    else if (name.starts_with("random"))  // 32 draws
      CHECK(std::abs(captured - random) <= stray / std::sqrt(32.0));
    else if (is_blind(name))
      CHECK(std::abs(captured - random) <= stray + 1e-6);
    else
      CHECK(captured > random + 2 * deviation);
  }
  for (const char* name : {"dense", "oracle/token", "random", "quest", "block_topk",
                           "ktransformers", "infllm", "snapkv", "h2o", "tova", "pyramidkv",
                           "infinigen", "magicpig", "twilight", "duoattention", "streaming"})
    CHECK(names.contains(name));
}

TEST_CASE(
    "bench recall: the note names the settings that were changed, and they give the same result "
    "again") {
  const Json first = json_of(bench({"-s", "pyramidkv"}))["strategies"][0];
  const uint32_t budget = first["settings"]["selector.budget_tokens"];
  CHECK(budget > 128);  // layer 0, which gets most, is dense and not measured
  CHECK(first["note"] == "selector.budget_tokens = " + std::to_string(budget) + " instead of 128");
  CHECK(first["runs"].get<int>() > 1);
  const Json chain = json_of(bench({"-s", "twilight"}))["strategies"][0];
  CHECK(chain["settings"]["selector.0.budget_tokens"].get<uint32_t>() > 128);
  const Json duo = json_of(bench({"-s", "duoattention"}))["strategies"][0];
  CHECK(duo["settings"]["selector.sparsity"].get<double>() > 0.5);
  CHECK(duo["settings"]["selector.sparsity"].get<double>() < 1.0);
}

TEST_CASE("bench recall: what cannot be fitted is left as it is, and the table says why") {
  // One kv head measured: it retrieves or it streams. And what the command line fixes stays.
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--heads", "2", "--kv-heads", "1", "--layers", "2"},
        std::vector<std::string>{"--set", "selector.sparsity=0.5"}}) {
    std::vector<std::string> arguments = bench({"-s", "duoattention"});
    for (const std::string& flag : more) {
      const auto same = std::find(arguments.begin(), arguments.end(), flag);
      if (same != arguments.end() && flag.starts_with("--")) arguments.erase(same, same + 2);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Json r = json_of(arguments)["strategies"][0];
    CHECK(r["at_target"] == false);
    CHECK(r["settings"] == Json{{"selector.budget_tokens", 128}});
    const std::string note = r["note"];
    CHECK(note.find("no selector.budget_tokens from 0 to 512") != note.npos);
    CHECK(note.find("leads to 168") != note.npos);
    arguments.erase(std::find(arguments.begin(), arguments.end(), "--json"));
    const Finished table = run_kvasir(arguments);
    CHECK(table.code == 0);
    CHECK(table.out.find("duoattention [1]") != std::string::npos);
    CHECK(table.out.find("[1] duoattention: " + note) != std::string::npos);
    // The plugin's warning, once for all runs.
    CHECK(table.err.find("no head_file") == table.err.rfind("no head_file"));
  }
}

TEST_CASE("bench recall: a choice for all heads is compared with choices for all heads") {
  const Json report =
      json_of(bench({"-s", "oracle/shared", "-s", "oracle/token/shared", "-s", "tova"}));
  for (const Json& r : report["strategies"]) CHECK(r["scope"] == "sequence");
  CHECK(report["strategies"][1]["unit"] == "token");
  CHECK(report["strategies"][2]["captured_mass"].get<double>() <=
        report["strategies"][1]["captured_mass"].get<double>() + 0.02);
}

TEST_CASE("bench recall: mistakes are named") {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"bench", "recall", "-c", "512"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = run_kvasir(arguments);
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    return done.err;
  };
  const auto says = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != text.npos);
  };
  says(refused({"-s", "qest"}), "did you mean the preset \"quest\"?");
  says(refused({"-s", "oracle/tokn"}), "-s oracle/tokn: no such strategy file (/token or /shared");
  says(refused({"-s", "quest/token"}), "unknown option unit of plugin kvasir.block_topk");
  says(refused({"-s", "quest", "-b", "8"}), "less than one block");
  says(refused({"--layers", "1"}), "--layers must be above 1");
  says(refused({"--heads", "6"}), "--kv-heads must divide --heads");
  says(refused({"-b", "0"}), "--budget");
}

}  // namespace
