// kvasir.tiered over a real Redis server: what is found, shared, refused, listed and removed.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/plugins/storage/store_instance.h"
#include "tests/support/effort.h"
#include "tests/support/redis_server.h"

namespace {
using namespace kvasir::test;

const std::string kRunKey = "kvasir:0123456789abcdef0000000000000007:";

std::string key_text(uint32_t block, uint64_t hash) {
  char text[64];
  std::snprintf(text, sizeof text, "%016llx0000000000000001-%u-0",
                static_cast<unsigned long long>(hash), block);
  return kRunKey + text;
}

void keep_blocks(const std::string& address, uint32_t n) {
  StoreInstance store(address);
  for (uint32_t block = 0; block < n; ++block) store.keep(block, block + 1, first_of(block));
}

// How many of blocks 0 … n-1 one call of restore() gives, from the first on.
uint32_t find_blocks(StoreInstance& store, uint32_t n) {
  std::vector<kvasir_block_key> keys;
  for (uint32_t block = 0; block < n; ++block) keys.push_back(StoreInstance::key(block, block + 1));
  std::vector<kvasir_lease> leases(n);
  REQUIRE(store.ext->restore(store.plugin.self(), keys.data(), n, sizeof keys[0], leases.data(),
                             sizeof leases[0], store.plugin.err()) == KVASIR_OK);
  uint32_t n_found = 0;
  for (uint32_t block = 0; block < n; ++block) {
    if (leases[block].state != KVASIR_LEASE_RESIDENT) break;
    ++n_found;
    CHECK(static_cast<const float*>(leases[block].k)[kFloats - 1] ==
          first_of(block) + static_cast<float>(kFloats - 1));
    store.let_go(keys[block], leases[block]);
  }
  return n_found;
}

void wait_for_keys(RedisServer& server, size_t n) {
  for (int i = 0; i < 2000 && server.keys().size() < n; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(server.keys().size() == n);
}

}  // namespace

TEST_SUITE_BEGIN("plugins/storage/redis");

TEST_CASE("a block is found by the next process, under its name alone") {
  if (!can_run_redis()) return;
  RedisServer server;
  { StoreInstance(server.address()).keep(3, 42, 5.0f); }
  CHECK(server.keys() == std::vector<std::string>{key_text(3, 42), kRunKey + "about"});
  CHECK(server.ask({"GET", kRunKey + "about"}).text == "a model");
  CHECK(server.ask({"STRLEN", key_text(3, 42)}).number == kFileBytes);
  StoreInstance next(server.address());
  CHECK(next.find(3, 42, 5.0f));
  CHECK(next.find(3, 42, 5.0f));
  CHECK(!next.find(3, 43, 5.0f));
  CHECK(!next.find(2, 42, 5.0f));
  CHECK(!StoreInstance(server.address(), {}, kOtherRun).find(3, 42, 5.0f));
  CHECK(!StoreInstance(server.address("&prefix=other")).find(3, 42, 5.0f));
  CHECK(!StoreInstance(server.address("&db=1")).find(3, 42, 5.0f));
}

TEST_CASE("many blocks come in one call, up to the first that is not there") {
  if (!can_run_redis()) return;
  RedisServer server;
  keep_blocks(server.address(), 700);  // more than two batches
  StoreInstance store(server.address());
  CHECK(find_blocks(store, 700) == 700);
  CHECK(find_blocks(store, 710) == 700);
  server.ask({"DEL", key_text(300, 301)});
  CHECK(find_blocks(store, 700) == 300);
  CHECK(find_blocks(store, 1) == 1);  // no answer of the call before is taken for this one's
  server.ask({"DEL", key_text(0, 1)});
  CHECK(find_blocks(store, 700) == 0);
}

TEST_CASE("two instances share a server, and what is there is not sent again") {
  if (!can_run_redis()) return;
  RedisServer server;
  StoreInstance a(server.address()), b(server.address());
  a.keep(0, 1, first_of(0));
  wait_for_keys(server, 2);
  b.keep(0, 1, first_of(0));
  b.keep(1, 2, first_of(1));
  wait_for_keys(server, 3);
  CHECK(a.find(1, 2, first_of(1)));
  CHECK(server.ask({"INFO", "commandstats"}).text.find("cmdstat_set:calls=4,") !=
        std::string::npos);  // two blocks, and what the run is about from each
}

TEST_CASE("every flipped byte makes a miss, and the record goes; so does one of another length") {
  if (!can_run_redis()) return;
  RedisServer server;
  for (const std::string compress : {"never", "always"}) {
    CAPTURE(compress);
    server.ask({"FLUSHALL"});
    const std::string address = server.address("&compress=" + compress);
    keep_blocks(address, 1);
    const std::string key = key_text(0, 1), whole = server.ask({"GET", key}).text;
    CHECK((whole.size() < kFileBytes) == (compress == "always"));
    std::vector<std::string> spoiled = {whole.substr(0, whole.size() - 1), whole + "x", "", "7"};
    for (size_t at = 0; at < whole.size(); at += few_cases() ? 97 : 7) {
      spoiled.push_back(whole);
      spoiled.back()[at] = static_cast<char>(spoiled.back()[at] ^ 0x10);
    }
    StoreInstance store(address);
    for (const std::string& value : spoiled) {
      server.ask({"SET", key, value});
      CHECK(store.verify().n_bad == (value.empty() ? 0 : 1));
      CHECK(!store.find(0, 1, first_of(0)));
      if (!value.empty()) CHECK(server.ask({"EXISTS", key}).number == 0);
    }
    CHECK(store.n_lines("it is removed") == 1);
    server.ask({"SET", key, whole});
    CHECK(store.find(0, 1, first_of(0)));
  }
}

TEST_CASE("what is no string under a key of ours is a miss, is said, and stays until verify") {
  if (!can_run_redis()) return;
  RedisServer server;
  keep_blocks(server.address(), 2);
  server.ask({"DEL", key_text(1, 2)});
  server.ask({"LPUSH", key_text(1, 2), "somebody's"});
  StoreInstance store(server.address());
  CHECK(find_blocks(store, 2) == 1);
  CHECK(store.n_lines("no string") == 1);
  CHECK(store.n_lines("does not serve") == 0);
  CHECK(store.verify().n_bad == 1);
  CHECK(store.verify(KVASIR_STORE_DELETE).n_removed == 1);
  CHECK(store.verify().n_bad == 0);
}

TEST_CASE("list counts runs, prune takes the last blocks first, other keys stay") {
  if (!can_run_redis()) return;
  RedisServer server;
  const std::string address = server.address("&compress=never");  // sizes are compared
  keep_blocks(address, 6);
  { StoreInstance(address, {}, kOtherRun).keep(0, 1, 5.0f); }
  server.ask({"SET", "kvasir:somebody's", "stays"});
  server.ask({"SET", kRunKey + "note", "stays"});
  StoreInstance tool(server.address(), {}, nullptr);  // not bound
  const auto runs = tool.list();
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].run[0] == 5);
  CHECK(runs[1].run[0] == kRun[0]);
  CHECK(std::string(runs[1].about) == "a model");
  CHECK(runs[1].n_blocks == 6);
  CHECK(runs[1].n_tokens == 24);
  CHECK(runs[1].n_files == 6);
  CHECK(runs[1].bytes >= 6 * kFileBytes);
  kvasir_store_filter filter = {sizeof filter,
                                KVASIR_STORE_ONE_RUN | KVASIR_STORE_LIMIT,
                                {kRun[0], kRun[1]},
                                2 * (runs[1].bytes / 6) + 5,
                                0};
  CHECK(tool.prune(filter).n_removed == 4);
  StoreInstance store(server.address());
  CHECK(find_blocks(store, 6) == 2);
  filter = {sizeof filter, KVASIR_STORE_OLDER, {}, 0, 3600};
  CHECK(tool.prune(filter).n_removed == 0);
  server.ask({"CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"});
  kvasir_store_result result{sizeof result, 0, 0, 0, 0, 0, 0, 0};
  CHECK(tool.ext->prune(tool.plugin.self(), &filter, &result, tool.plugin.err()) == KVASIR_ERR_IO);
  CHECK(tool.plugin.text().find("when blocks were used") != std::string::npos);
  filter = {sizeof filter, 0, {}, 0, 0};
  CHECK(tool.prune(filter).n_removed == 3);
  CHECK(tool.list().empty());
  CHECK(server.ask({"EXISTS", "kvasir:somebody's"}).number == 1);
  CHECK(server.ask({"EXISTS", kRunKey + "note"}).number == 1);
}

TEST_CASE("a password comes from the environment or a file, and is never repeated") {
  if (!can_run_redis()) return;
  RedisServer server({"--requirepass", "s3cret"});
  const TempDir dir;
  const std::string file = dir.write("password", "s3cret\n");
  const auto never_said = [](const StoreInstance& store) { CHECK(store.n_lines("s3cret") == 0); };
  {
    StoreInstance none(server.address());
    CHECK(!none.find(0, 1, 0.0f));
    CHECK(none.n_lines("KVASIR_REDIS_PASSWORD") == 1);
  }
  keep_blocks(server.address("&password_file=" + file), 1);
  ::setenv("KVASIR_REDIS_PASSWORD", "s3cret", 1);
  {
    StoreInstance store(server.address());
    CHECK(store.find(0, 1, first_of(0)));
    never_said(store);
  }
  ::setenv("KVASIR_REDIS_PASSWORD", "wr0ng", 1);
  {
    StoreInstance store(server.address());
    CHECK(!store.find(0, 1, first_of(0)));
    CHECK(store.n_lines("WRONGPASS") == 1);
    CHECK(store.n_lines("wr0ng") == 0);
  }
  ::unsetenv("KVASIR_REDIS_PASSWORD");
}

TEST_CASE("an address that cannot be meant is refused, with what to do") {
  struct {
    const char *address, *part;
  } const cases[] = {
      {"redis://", "no host"},
      {"redis://host:0", "1 to 65535"},
      {"redis://host:http", "1 to 65535"},
      {"redis://host/one", "database"},
      {"redis://:s3cret@host", "KVASIR_REDIS_PASSWORD"},
      {"redis://me:s3cret@host/0", "KVASIR_REDIS_PASSWORD"},
      {"redis://host?password=s3cret", "password_file"},
      {"redis://me@host", "names a user"},
      {"redis://host?password_file=/no/such", "cannot be read"},
      {"redis://host?timeout=5", "unknown key timeout"},
      {"redis://host?timeout_ms=0", "from 1 to"},
      {"redis://host?compress=yes", "\"always\""},
      {"redis://host?prefix=a*", "prefix="},
      {"redis://ho%20st", "percent"},
      {"redis+unix://relative", "absolute path"},
      {"rediss://host", "tunnel"},
  };
  for (const auto& [address, part] : cases) {
    CAPTURE(address);
    CompletingHost host;
    PluginInstance<kvasir_storage> plugin(host, "tiered", {{"store", std::string(address)}});
    CHECK(plugin.status() != KVASIR_OK);
    CHECK(plugin.text().find(part) != std::string::npos);
    CHECK(plugin.text().find("s3cret") == std::string::npos);
  }
  CompletingHost host;
  PluginInstance<kvasir_storage> limited(
      host, "tiered",
      {{"store", std::string("redis://localhost")}, {"store_limit_bytes", int64_t{1} << 30}});
  CHECK(limited.status() == KVASIR_ERR_INVALID);
  CHECK(limited.text().find("maxmemory") != std::string::npos);
}

TEST_CASE("a server is reached over TCP, too") {
  if (!can_run_redis()) return;
  const uint16_t port = free_port();
  RedisServer server({"--port", std::to_string(port), "--bind", "127.0.0.1"});
  const std::string address = "redis://localhost:" + std::to_string(port) + "/3";
  keep_blocks(address, 2);
  StoreInstance store(address);
  CHECK(find_blocks(store, 2) == 2);
  CHECK(server.keys().empty());  // they are in database 3
}

TEST_SUITE_END();
