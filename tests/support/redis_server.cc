// See redis_server.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/redis_server.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "tests/support/skip.h"

namespace kvasir::test {
namespace {

const char* const kBinary = "/usr/bin/redis-server";

sockaddr_un name_of(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof name.sun_path);
  std::memcpy(name.sun_path, path.c_str(), path.size());
  return name;
}

std::string address_of(const std::string& socket, const std::string& more) {
  return "redis+unix://" + socket + "?connect_timeout_ms=2000&timeout_ms=2000&retry_ms=0" + more;
}

RedisServer::Answer answer_of(const redisReply& reply) {
  RedisServer::Answer out;
  if (reply.str) out.text.assign(reply.str, reply.len);
  out.number = reply.integer;
  for (size_t i = 0; i < reply.elements; ++i) {
    const redisReply& one = *reply.element[i];
    out.list.emplace_back(one.str ? std::string(one.str, one.len) : "");
  }
  return out;
}

}  // namespace

bool RedisServer::is_installed() { return ::access(kBinary, X_OK) == 0; }

bool can_run_redis() {
  if (RedisServer::is_installed()) return true;
  MESSAGE("SKIPPED: no redis-server here (Debian's package redis-server)");
  skip_case();
  return false;
}

uint16_t free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  REQUIRE(::bind(probe, reinterpret_cast<const sockaddr*>(&name), size) == 0);
  REQUIRE(::getsockname(probe, reinterpret_cast<sockaddr*>(&name), &size) == 0);
  ::close(probe);
  return ntohs(name.sin_port);
}

RedisServer::RedisServer(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
  start();
}

RedisServer::~RedisServer() { stop(); }

std::string RedisServer::address(const std::string& more) const {
  return address_of(socket_, more);
}

void RedisServer::start() {
  std::vector<std::string> words = {kBinary,
                                    "--port",
                                    "0",
                                    "--unixsocket",
                                    socket_,
                                    "--dir",
                                    folder_.path(""),
                                    "--save",
                                    "",
                                    "--appendonly",
                                    "no",
                                    "--logfile",
                                    folder_.path("log")};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  child_ = ::fork();
  REQUIRE(child_ >= 0);
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server
    ::execv(kBinary, argv.data());
    ::_exit(127);
  }
  // A server with a password answers as well.
  for (int i = 0; i < 1000; ++i) {
    client_.reset(redisConnectUnix(socket_.c_str()));
    const std::unique_ptr<redisReply, void (*)(void*)> reply(
        client_->err != 0 ? nullptr : static_cast<redisReply*>(redisCommand(client_.get(), "PING")),
        freeReplyObject);
    if (reply) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("redis-server did not start: " << read_bytes(folder_.path("log")));
}

void RedisServer::stop() {
  client_.reset();
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
  child_ = -1;
  ::unlink(socket_.c_str());
}

RedisServer::Answer RedisServer::ask(const std::vector<std::string>& words) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  const std::unique_ptr<redisReply, void (*)(void*)> reply(
      static_cast<redisReply*>(redisCommandArgv(client_.get(), static_cast<int>(words.size()),
                                                texts.data(), sizes.data())),
      freeReplyObject);
  REQUIRE(reply);
  REQUIRE_MESSAGE(reply->type != REDIS_REPLY_ERROR, reply->str);
  return answer_of(*reply);
}

std::vector<std::string> RedisServer::keys() {
  auto out = ask({"KEYS", "*"}).list;
  std::sort(out.begin(), out.end());
  return out;
}

FakeServer::FakeServer(std::function<void(int)> serve) : serve_(std::move(serve)) {
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un name = name_of(socket_);
  REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  REQUIRE(::listen(listener_, 16) == 0);
  acceptor_ = std::thread([this] { listen(); });
}

void FakeServer::listen() {
  for (;;) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    ++n_connections_;
    const std::lock_guard lock(mutex_);
    open_.push_back(connection);
    threads_.emplace_back([this, connection] {
      serve_(connection);
      ::shutdown(connection, SHUT_RDWR);
    });
  }
}

FakeServer::~FakeServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (const int connection : open_) ::shutdown(connection, SHUT_RDWR);
  for (std::thread& thread : threads_) thread.join();
  for (const int connection : open_) ::close(connection);
  ::close(listener_);
}

std::string FakeServer::address(const std::string& more) const { return address_of(socket_, more); }

namespace {

// The line at `at`, without its end, and behind it; none when it has not come whole.
std::optional<std::string> line_at(const std::string& buffer, size_t& at) {
  const size_t end = buffer.find("\r\n", at);
  if (end == buffer.npos) return std::nullopt;
  std::string out = buffer.substr(at, end - at);
  at = end + 2;
  return out;
}

// How many bytes of `buffer` a whole command takes; 0 when it has not come whole.
size_t parse_command(const std::string& buffer, std::vector<std::string>& words) {
  words.clear();
  size_t at = 0;
  const auto head = line_at(buffer, at);
  if (!head) return 0;
  for (int n = std::atoi(head->c_str() + 1); n > 0; --n) {
    const auto size = line_at(buffer, at);
    if (!size) return 0;
    const auto bytes = static_cast<size_t>(std::atoi(size->c_str() + 1));
    if (buffer.size() < at + bytes + 2) return 0;
    words.push_back(buffer.substr(at, bytes));
    at += bytes + 2;
  }
  return at;
}

}  // namespace

bool read_command(int connection, std::string& buffer, std::vector<std::string>& words) {
  for (;;) {
    if (const size_t used = parse_command(buffer, words); used != 0) {
      buffer.erase(0, used);
      return true;
    }
    char bytes[4096];
    const ssize_t n = ::recv(connection, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer.append(bytes, static_cast<size_t>(n));
  }
}

bool send_text(int connection, const std::string& text) {
  return ::send(connection, text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace kvasir::test
