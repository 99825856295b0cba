// A Redis server that goes, refuses, dawdles or talks rubbish: a miss in time, said once, never a
// wrong block.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/plugins/storage/store_instance.h"
#include "tests/support/effort.h"
#include "tests/support/redis_server.h"

namespace {
using namespace kvasir::test;
using Words = std::vector<std::string>;

double seconds(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class Fn>
bool soon(const Fn& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Greets as a server does; fn answers everything else, false ends the connection.
std::function<void(int)> server_that(std::function<bool(int, const Words&)> fn) {
  return [fn](int connection) {
    std::string buffer;
    for (Words words; read_command(connection, buffer, words);)
      if (words[0] == "PING" ? !send_text(connection, "+PONG\r\n") : !fn(connection, words)) return;
  };
}

const auto is_read = [](const Words& words) { return words[0] == "GETRANGE"; };

}  // namespace

TEST_SUITE_BEGIN("plugins/storage/redis_faults");

TEST_CASE("a server that stops and comes back is said once each, and serves again") {
  if (!can_run_redis()) return;
  RedisServer server;
  StoreInstance store(server.address("&retry_ms=1"));
  store.keep(0, 1, 5.0f);
  REQUIRE(soon([&] { return store.find(0, 1, 5.0f); }));
  server.stop();
  for (int i = 0; i < 5; ++i) {
    CHECK(!store.find(0, 1, 5.0f));
    store.keep(1, 2, 6.0f);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(store.n_lines("does not serve") == 1);
  server.start();  // empty
  CHECK(soon([&] {
    store.keep(2, 3, 7.0f);
    return store.find(2, 3, 7.0f);
  }));
  CHECK(!store.find(0, 1, 5.0f));
  CHECK(store.n_lines("does not serve") == 1);
  CHECK(store.n_lines("serves again") == 1);
}

TEST_CASE("a restart between two prompts costs nothing, a flush makes a miss") {
  if (!can_run_redis()) return;
  RedisServer server;
  StoreInstance store(server.address("&retry_ms=60000"));
  store.keep(0, 1, 5.0f);
  REQUIRE(soon([&] { return store.find(0, 1, 5.0f); }));
  server.stop();
  server.start();
  CHECK(!store.find(0, 1, 5.0f));  // over a new connection, at once
  CHECK(store.n_lines("does not serve") == 0);
  { StoreInstance(server.address()).keep(0, 1, 5.0f); }
  CHECK(store.find(0, 1, 5.0f));
  server.ask({"FLUSHALL"});
  CHECK(!store.find(0, 1, 5.0f));
  CHECK(store.n_lines("does not serve") == 0);
}

TEST_CASE("a server that is not there costs one try until it is time for another") {
  const TempDir dir;
  const std::string address = "redis+unix://" + dir.path("none") + "?retry_ms=60000";
  StoreInstance store(address);
  for (int i = 0; i < 100; ++i) CHECK(!store.find(0, 1, 5.0f));
  store.keep(0, 1, 5.0f);
  CHECK(store.n_lines("does not serve") == 1);
  const kvasir_store_filter filter = {sizeof filter, 0, {}, 0, 0};
  kvasir_store_result out{sizeof out, 0, 0, 0, 0, 0, 0, 0};
  CHECK(store.ext->prune(store.plugin.self(), &filter, &out, store.plugin.err()) == KVASIR_ERR_IO);
  CHECK(store.plugin.text().find(dir.path("none")) != std::string::npos);
}

TEST_CASE("a full server, and a replica, take no blocks and still give theirs") {
  if (!can_run_redis()) return;
  for (const bool full : {true, false}) {
    CAPTURE(full);
    RedisServer server;
    StoreInstance store(server.address());
    store.keep(0, 1, 5.0f);
    REQUIRE(soon([&] { return store.find(0, 1, 5.0f); }));
    if (full)
      server.ask({"CONFIG", "SET", "maxmemory", "1"});
    else
      server.ask({"REPLICAOF", "127.0.0.1", "1"});
    for (uint32_t block = 1; block < 6; ++block) store.keep(block, block + 1, 6.0f);
    CHECK(soon([&] { return store.n_lines(full ? "OOM" : "READONLY") == 1; }));
    CHECK(store.find(0, 1, 5.0f));
    CHECK(!store.find(1, 2, 6.0f));
    CHECK(store.n_lines("takes no blocks") == 1);
    if (full)
      server.ask({"CONFIG", "SET", "maxmemory", "0"});
    else
      server.ask({"REPLICAOF", "NO", "ONE"});
    CHECK(soon([&] {
      store.keep(1, 2, 6.0f);
      return store.find(1, 2, 6.0f);
    }));
    // A block may be found before the thread that wrote it has read the answer.
    CHECK(soon([&] { return store.n_lines("takes blocks again") == 1; }));
    CHECK(store.n_lines("does not serve") == 0);
  }
}

TEST_CASE("what is asked of a server is sent before it answers anything") {
  constexpr uint32_t kN = 200;
  std::atomic<uint32_t> n_asked{0};
  FakeServer server(server_that([&](int connection, const Words& words) {
    if (!is_read(words)) return send_text(connection, "-ERR no\r\n");
    if (++n_asked < kN) return true;
    std::string all;
    for (uint32_t i = 0; i < kN; ++i) all += "$0\r\n\r\n";
    return send_text(connection, all);
  }));
  StoreInstance store(server.address());
  std::vector<kvasir_block_key> keys;
  for (uint32_t block = 0; block < kN; ++block)
    keys.push_back(StoreInstance::key(block, block + 1));
  std::vector<kvasir_lease> leases(kN);
  CHECK(store.ext->restore(store.plugin.self(), keys.data(), kN, sizeof keys[0], leases.data(),
                           sizeof leases[0], store.plugin.err()) == KVASIR_OK);
  CHECK(n_asked == kN);
  CHECK(store.n_lines("does not serve") == 0);
}

TEST_CASE("a server that does not answer, or byte by byte, is waited for no longer than said") {
  std::atomic<bool> drips{false};
  FakeServer server(server_that([&](int connection, const Words& words) {
    if (!drips || !is_read(words)) return true;  // silence
    send_text(connection, "$616\r\n");
    for (int i = 0; i < 616; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      if (!send_text(connection, "x")) return false;
    }
    return true;
  }));
  for (const bool how : {false, true}) {
    drips = how;
    CAPTURE(how);
    StoreInstance store(server.address("&timeout_ms=200&retry_ms=60000"));
    const double first = seconds([&] { CHECK(!store.find(0, 1, 5.0f)); });
    CHECK(first >= 0.2);
    CHECK(first < 2.0);
    CHECK(seconds([&] {
            for (int i = 0; i < 50; ++i) CHECK(!store.find(0, 1, 5.0f));
          }) < 0.2);
    CHECK(store.n_lines("timeout_ms") == 1);
  }
  StoreInstance store(server.address("&timeout_ms=100&retry_ms=0"));
  const double writing = seconds([&] {
    for (uint32_t block = 0; block < 3; ++block) store.keep(block, block + 1, 5.0f);
  });
  CHECK(writing < 1.0);  // nobody waits for a server that takes nothing
}

TEST_CASE("a server that takes nothing ends no run late") {
  FakeServer server([](int connection) {
    std::string buffer;
    Words words;
    read_command(connection, buffer, words);
    send_text(connection, "+PONG\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // reads nothing more
  });
  const double took = seconds([&] {
    StoreInstance store(server.address("&timeout_ms=200&retry_ms=60000"));
    for (uint32_t block = 0; block < 400; ++block) store.keep(block, block + 1, 5.0f);
  });
  CHECK(took < 1.2);
}

TEST_CASE("rubbish is a miss, never a block and never much memory") {
  const std::string whole_but_zeros = "$616\r\n" + std::string(616, '\0') + "\r\n";
  const Words rubbish = {"HTTP/1.1 400 Bad Request\r\n\r\n",
                         ":616\r\n",
                         "+OK\r\n",
                         "-ERR what?\r\n",
                         "-LOADING Redis is loading the dataset in memory\r\n",
                         "-MOVED 3999 127.0.0.1:6381\r\n",
                         "$-1\r\n",
                         "$-7\r\n",
                         "$99999999999999999999\r\n",
                         "*2147483647\r\n",
                         "*-3\r\n",
                         "*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n",
                         "$5\r\nhello\r\n",
                         "$100000000\r\n" + std::string(5'000'000, 'x'),
                         whole_but_zeros,
                         std::string(64, '\0'),
                         "\r\n\r\n\r\n",
                         ""};
  for (const std::string& text : rubbish) {
    CAPTURE(text.substr(0, 40));
    FakeServer server(server_that([&](int connection, const Words&) {
      send_text(connection, text);
      return !text.empty();
    }));
    StoreInstance store(server.address("&timeout_ms=300&retry_ms=1"));
    for (int i = 0; i < 3; ++i) {
      CHECK(!store.find(0, 1, 5.0f));
      store.keep(0, 1, 5.0f);
    }
    CHECK(store.host.lines().size() <= 8);
    std::vector<kvasir_store_run> runs(4);
    uint32_t n = 0;
    CHECK(store.ext->list(store.plugin.self(), runs.data(), 4, sizeof runs[0], &n,
                          store.plugin.err()) == KVASIR_ERR_IO);
  }
}

TEST_CASE("a greeting that is rubbish, echoes the password or never comes is no server") {
  ::setenv("KVASIR_REDIS_PASSWORD", "s3cret", 1);
  for (const std::string text :
       {"+OK\r\n", "-ERR no such user, nor s3cret\r\n", "220 mail.example\r\n", ""}) {
    CAPTURE(text);
    FakeServer server([&](int connection) {
      send_text(connection, text);
      std::string buffer;
      for (Words words; read_command(connection, buffer, words);) continue;
    });
    StoreInstance store(server.address("&timeout_ms=200"));
    CHECK(!store.find(0, 1, 5.0f));
    CHECK(store.n_lines("does not serve") == 1);
    CHECK(store.n_lines("s3cret") == 0);
  }
  ::unsetenv("KVASIR_REDIS_PASSWORD");
}

TEST_SUITE_END();
