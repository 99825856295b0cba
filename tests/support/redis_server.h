// A real Redis server on a unix socket of its own, and a server that answers whatever a test says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hiredis/hiredis.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace kvasir::test {

// Debian's package redis-server. It keeps nothing when it is stopped.
class RedisServer {
 public:
  static bool is_installed();
  // arguments: as on its command line, after those that choose socket and folder.
  explicit RedisServer(std::vector<std::string> arguments = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  const std::string& socket() const { return socket_; }
  // For storage.store, with times short enough for a test. more: "&key=value".
  std::string address(const std::string& more = "") const;
  void stop();  // at once, as a crash
  void start();

  // One command of the test's own. An error of the server fails the case.
  struct Answer {
    std::string text;
    int64_t number = 0;
    std::vector<std::string> list;
  };
  Answer ask(const std::vector<std::string>& words);
  std::vector<std::string> keys();  // sorted

 private:
  TempDir folder_;
  std::string socket_ = folder_.path("redis");
  std::vector<std::string> arguments_;
  pid_t child_ = -1;
  std::unique_ptr<redisContext, void (*)(redisContext*)> client_{nullptr, redisFree};
};

uint16_t free_port();  // of 127.0.0.1, by now
// Skips the case, visibly, where there is no redis-server.
bool can_run_redis();

// Listens on a unix socket. `serve` is called in a thread of its own for every connection, and
// closes nothing.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int connection)> serve);
  ~FakeServer();  // ends the connections, too
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  std::string address(const std::string& more = "") const;
  uint32_t n_connections() const { return n_connections_; }

 private:
  void listen();

  TempDir folder_;
  std::string socket_ = folder_.path("fake");
  std::function<void(int)> serve_;
  int listener_ = -1;
  std::atomic<uint32_t> n_connections_{0};
  std::mutex mutex_;  // of the next two
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// What a fake server reads: commands as lists of words. False when the other side has gone.
bool read_command(int connection, std::string& buffer, std::vector<std::string>& words);
bool send_text(int connection, const std::string& text);

}  // namespace kvasir::test
