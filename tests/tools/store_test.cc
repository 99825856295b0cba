// Prompts kept from run to run, and `kvasir cache`, which looks after them.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/support/effort.h"
#include "tests/tools/faults.h"
#include "tests/tools/stored_prompt.h"

namespace {
using namespace kvasir::test;
namespace fs = std::filesystem;

}  // namespace

TEST_SUITE_BEGIN("tools/store");

TEST_CASE("the second run reads what the first did not store, and answers the same") {
  const StoredPrompt p;
  const auto first = json_of(p.run()), second = json_of(p.run());
  const auto n = first["prompt_tokens"].get<uint32_t>();
  CHECK(first["restored_prompt_tokens"] == 0);
  CHECK(second["restored_prompt_tokens"] == (n - 1) / 32 * 32);
  CHECK(second["text"] == first["text"]);
  CHECK(second["prefill"]["tiers"][2]["tier"] == "store");
  CHECK(second["prefill"]["tiers"][2]["bytes_read"].get<uint64_t>() > 0);
  CHECK(second["first_token_ms"].get<double>() > 0);
  const Finished text = run_kvasir([&] {
    std::vector<std::string> out = p.run();
    std::erase(out, "--json");
    return out;
  }());
  CHECK(has(text.err, "store: " + std::to_string((n - 1) / 32 * 32) + " of " + std::to_string(n) +
                          " prompt tokens were in the store"));
}

TEST_CASE("another type, block size, arithmetic, instruction set or model finds nothing") {
  const StoredPrompt p;
  p.restored();
  REQUIRE(p.restored() > 0);
  CHECK(p.restored({"-ctk", "f32"}) == 0);
  CHECK(p.restored({"-ctv", "bf16"}) == 0);
  CHECK(p.restored({"--set", "cache.block_size=64"}) == 0);
  const auto other = json_of(p.run({}, "auto"));
  if (other["compute"] != "f32") CHECK(other["restored_prompt_tokens"] == 0);
  CHECK(p.restored({"-s", "snapkv"}) == 0);
  CHECK(p.restored({"-s", "quest", "--set", "cache.block_size=32"}) > 0);
  // Where AVX2 is the best there is, no other set can be asked for.
  if (run_kvasir({"--version"}, {"KVASIR_SIMD=avx512"}).code == 0)
    CHECK(json_of(p.run(), {"KVASIR_SIMD=avx2"})["restored_prompt_tokens"] == 0);
  else
    MESSAGE("SKIPPED: no second instruction set on this CPU");
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--context", "4096", "--seed", "77",
                      "--force", "-o", p.model.path})
              .code == 0);
  CHECK(p.restored() == 0);
}

TEST_CASE("cache list, verify and prune") {
  const StoredPrompt p;
  p.restored();
  p.restored({"-ctk", "f32"});
  const auto runs = json_of({"cache", "list", p.store, "--json"})["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["tokens"] == runs[0]["blocks"].get<uint32_t>() * 32);
  CHECK(runs[0]["run"].get<std::string>().size() == 32);
  CHECK(runs[0]["bytes"].get<uint64_t>() > 0);
  const Finished table = run_kvasir({"cache", "list", p.store});
  CHECK(has(table.out, runs[0]["run"].get<std::string>().substr(0, 12)));
  CHECK(json_of({"cache", "verify", p.store, "--json"})["bad"].empty());

  fs::path victim;
  for (const auto& entry : fs::recursive_directory_iterator(p.store))
    if (entry.is_regular_file() && entry.path().filename() != "about") victim = entry.path();
  fs::resize_file(victim, 200);
  const Finished spoiled = run_kvasir({"cache", "verify", p.store, "--json"});
  CHECK(spoiled.code == 2);
  const auto bad = nlohmann::json::parse(spoiled.out);
  REQUIRE(bad["bad"].size() == 1);
  CHECK(bad["bad"][0]["file"] == victim.string());
  CHECK(bad["removed"] == 0);
  const Finished removed = run_kvasir({"cache", "verify", p.store, "--delete"});
  CHECK(removed.code == 0);
  CHECK(has(removed.out, "1 bad, 1 removed"));
  CHECK(!fs::exists(victim));

  const Finished nothing_said = run_kvasir({"cache", "prune", p.store});
  CHECK(nothing_said.code == 2);
  CHECK(has(nothing_said.err, "--limit 10G"));
  CHECK(run_kvasir({"cache", "prune", p.store, "--limit", "10X"}).code == 2);
  CHECK(run_kvasir({"cache", "list", p.folder.path("none")}).code == 2);
  CHECK(run_kvasir({"cache", "list", "-s", "dense"}).code == 2);
  CHECK(run_kvasir({"cache", "prune", p.store, "--model", "no such model"}).code == 2);
  CHECK(json_of({"cache", "prune", p.store, "--older-than", "1h", "--json"})["removed"] == 0);
  const auto name = runs[0]["run"].get<std::string>().substr(0, 8);
  CHECK(json_of({"cache", "prune", p.store, "--model", name, "--json"})["removed"] > 0);
  CHECK(json_of({"cache", "list", p.store, "--json"})["runs"].size() == 1);
  const auto rest = json_of({"cache", "list", p.store, "--json"})["runs"][0];
  const uint64_t limit = rest["bytes"].get<uint64_t>() / 2;
  json_of({"cache", "prune", p.store, "--limit", std::to_string(limit), "--json"});
  uint64_t left = 0;
  const auto kept = json_of({"cache", "list", p.store, "--json"});
  for (const auto& run : kept["runs"]) left += run["bytes"].get<uint64_t>();
  CHECK(left <= limit);
  CHECK(left > 0);
  json_of({"cache", "prune", p.store, "--all", "--json"});
  CHECK(json_of({"cache", "list", p.store, "--json"})["runs"].empty());
}

TEST_CASE("a disk that is full or refuses ends no run and changes no answer") {
  if (!can_inject_faults()) return;
  const StoredPrompt p;
  const auto want = json_of(p.run())["text"];
  for (const std::string kind : {"enospc", "eio"}) {
    CAPTURE(kind);
    fs::remove_all(p.store);
    fs::create_directory(p.store);
    fs::permissions(p.store, fs::perms::owner_all);
    const Faulted got = run_with({kind, "write"}, p.store, p.run());
    CHECK(got.code == 0);
    REQUIRE(!got.hits.empty());
    CHECK(got.says("takes no more"));
    CHECK(nlohmann::json::parse(got.out)["text"] == want);
    const auto checked = json_of({"cache", "verify", p.store, "--json"});
    CHECK(checked["bad"].empty());
    CHECK(checked["files"] == 0);
  }
}

TEST_CASE("runs that are killed at random times leave nothing wrong") {
  const StoredPrompt p;
  CHECK(killed_at_random(p, n_kills(20), [&] { fs::remove_all(p.store); }) > 0);
}

TEST_CASE("two processes fill and read one store at once") {
  const StoredPrompt p;
  const auto want = json_of(p.run())["text"];
  fs::remove_all(p.store);
  check_two_at_once(p.run(), want);
  CHECK(json_of({"cache", "verify", p.store, "--json"})["bad"].empty());
  CHECK(p.restored() > 0);
}

TEST_SUITE_END();
