// Prompts kept on a Redis server, `kvasir cache` over it, and commands that put many prompts.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/effort.h"
#include "tests/support/redis_server.h"
#include "tests/tools/stored_prompt.h"

namespace {
using namespace kvasir::test;

struct ServedPrompt : StoredPrompt {
  explicit ServedPrompt(const RedisServer& server) { store = server.address(); }
};

}  // namespace

TEST_SUITE_BEGIN("tools/server");

TEST_CASE("a second process reads what the first left on a server, and does without it") {
  if (!can_run_redis()) return;
  RedisServer server;
  const ServedPrompt p(server);
  const auto first = json_of(p.run()), second = json_of(p.run());
  const auto n = first["prompt_tokens"].get<uint32_t>();
  CHECK(first["restored_prompt_tokens"] == 0);
  CHECK(second["restored_prompt_tokens"] == (n - 1) / 32 * 32);
  CHECK(second["text"] == first["text"]);
  CHECK(second["prefill"]["tiers"][2]["bytes_read"].get<uint64_t>() > 0);
  server.stop();
  const Finished alone = run_kvasir(p.run());
  CHECK(alone.code == 0);
  CHECK(has(alone.err, "does not serve"));
  CHECK(nlohmann::json::parse(alone.out)["text"] == first["text"]);
}

TEST_CASE("runs that are killed at random times leave nothing wrong on a server") {
  if (!can_run_redis()) return;
  RedisServer server;
  CHECK(killed_at_random(ServedPrompt(server), n_kills(8), [&] { server.ask({"FLUSHALL"}); }) > 0);
}

TEST_CASE("whatever the server does at whatever time, the answer is the same") {
  if (!can_run_redis()) return;
  RedisServer server;
  const ServedPrompt p(server);
  const auto begin = std::chrono::steady_clock::now();
  const auto want = json_of(p.run())["text"];
  const auto takes = std::chrono::steady_clock::now() - begin;
  std::mt19937 random(9);
  for (int i = 0; i < n_kills(8); ++i) {
    CAPTURE(i);
    RunningKvasir kvasir(p.run());
    std::this_thread::sleep_for(takes * (random() % 1000) / 1000);
    if (i % 4 == 0) server.stop();
    if (i % 4 == 1) server.ask({"FLUSHALL"});
    if (i % 4 == 2) server.ask({"CLIENT", "PAUSE", "3000", "ALL"});
    if (i % 4 == 3) server.stop(), server.start();
    const Finished done = kvasir.finish();
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    CHECK(nlohmann::json::parse(done.out)["text"] == want);
    if (i % 4 == 2) server.stop();  // the pause ends with it
    if (i % 2 == 0) server.start();
    CHECK(json_of({"cache", "verify", p.store, "--json"})["bad"].empty());
  }
}

TEST_CASE("two processes share a server at once") {
  if (!can_run_redis()) return;
  RedisServer server;
  const ServedPrompt p(server);
  const auto want = json_of(p.run())["text"];
  server.ask({"FLUSHALL"});
  check_two_at_once(p.run(), want);
  CHECK(p.restored() > 0);
}

TEST_CASE("cache list, verify and prune over a server, whose password nobody says") {
  if (!can_run_redis()) return;
  RedisServer server({"--requirepass", "s3cret"});
  server.ask({"AUTH", "s3cret"});
  const ServedPrompt p(server);
  const std::vector<std::string> password = {"KVASIR_REDIS_PASSWORD=s3cret"};
  const auto kvasir = [&](const std::vector<std::string>& arguments) {
    const Finished done = run_kvasir(arguments, password);
    CHECK(!has(done.out + done.err, "s3cret"));
    return done;
  };
  CHECK(kvasir(p.run()).code == 0);
  const auto runs = nlohmann::json::parse(kvasir({"cache", "list", p.store, "--json"}).out)["runs"];
  REQUIRE(runs.size() == 1);
  CHECK(runs[0]["tokens"] == runs[0]["blocks"].get<uint32_t>() * 32);
  const auto keys = server.keys();
  server.ask({"SETRANGE", keys[0], "110", "damage"});
  CHECK(kvasir({"cache", "verify", p.store}).code == 2);
  CHECK(has(kvasir({"cache", "verify", p.store, "--delete"}).out, "1 bad, 1 removed"));
  CHECK(kvasir({"cache", "prune", p.store, "--all"}).code == 0);
  CHECK(has(kvasir({"cache", "list", p.store}).out, "the store is empty"));
  const Finished refused = run_kvasir({"cache", "list", p.store});
  CHECK(refused.code != 0);
  CHECK(has(refused.err, "KVASIR_REDIS_PASSWORD"));
}

TEST_CASE("compare, task eval and ab begin with what a store has, and find the same") {
  const StoredPrompt p;
  const std::vector<std::string> model = {"-m",        p.model.path,
                                          "--compute", "f32",
                                          "--set",     "cache.block_size=32",
                                          "--set",     "storage.plugin=tiered",
                                          "--set",     "storage.store=" + p.store,
                                          "-s",        "quest"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), model.begin(), model.end());
    return arguments;
  };
  const auto told = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    return json_of(arguments);
  };
  const auto compare = with({"compare", "-f", p.text, "-n", "8"});
  const auto first = told(compare)["strategies"];
  const auto second = told(compare)["strategies"];
  for (size_t i = 0; i < 2; ++i) {
    CHECK(first[i]["restored_prompt_tokens"] == 0);
    CHECK(second[i]["restored_prompt_tokens"].get<uint32_t>() > 300);
    for (const char* key : {"top1_agreement", "mean_kl"}) CHECK(second[i][key] == first[i][key]);
  }
  CHECK(has(run_kvasir(compare).out, "prompt tokens of all strategies were in the store"));

  const auto eval = with({"task", "eval", "--task", "passkey", "--length", "512", "-n", "2"});
  const auto asked = told(eval)["cells"];
  const auto again = told(eval)["cells"];
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"correct", "answer_tokens_right"})
      CHECK(asked[i][key] == again[i][key]);
    CHECK(asked[i]["engagement"]["restored_prompt_tokens"] == 0);
    CHECK(again[i]["engagement"]["restored_prompt_tokens"].get<uint32_t>() > 500);
  }
  CHECK(has(run_kvasir(eval).out, "prompt tokens of all strategies were in the store"));

  for (const char* folder : {"first", "second"}) {
    const Finished ab = run_kvasir(with({"ab", "--task", "passkey", "--length", "512", "-n", "2",
                                         "--quick", "--no-ladder", "-o", p.folder.path(folder)}));
    CAPTURE(ab.err);
    CHECK(ab.code == 0);
    if (folder == std::string("second"))
      CHECK(has(ab.err, "prompt tokens of all strategies were in the store"));
  }
}

TEST_SUITE_END();
