// See redis_connection.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/redis_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <vector>

#include "plugins/storage/tiered/reason.h"
#include "plugins/storage/tiered/store_entries.h"

namespace kvasir::tiered {
namespace {

constexpr size_t kMostElements = 1 << 16;  // of an answer that is a list
constexpr size_t kMostTold = 160;          // characters of a server's sentence

// Lists longer than anything that is asked for are refused before memory is taken for them.
void limit_lists(redisReader& reader) {
  static const redisReplyObjectFunctions kGiven = *reader.fn;
  static redisReplyObjectFunctions limited = [] {
    redisReplyObjectFunctions out = kGiven;
    out.createArray = [](const redisReadTask* task, auto n) -> void* {
      return static_cast<size_t>(n) > kMostElements ? nullptr : kGiven.createArray(task, n);
    };
    return out;
  }();
  reader.fn = &limited;
}

}  // namespace

std::string RedisConnection::safe(std::string_view text) const {
  std::string out = printable(std::string(text), text.size());
  const std::string& password = address_.password;
  for (size_t at = 0; !password.empty() && (at = out.find(password, at)) != out.npos; at += 3)
    out.replace(at, password.size(), "***");
  return printable(out, kMostTold);
}

void RedisConnection::wait(short events, Deadline deadline, const char* what) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw RedisError(what, true);
    pollfd ready = {context_->fd, events, 0};
    const int n = ::poll(&ready, 1, static_cast<int>(left.count()));
    if (n > 0) return;
    if (n < 0 && errno != EINTR) throw RedisError(reason(errno));
  }
}

void RedisConnection::close() {
  context_.reset();
  out_.clear();
}

void RedisConnection::open() {
  close();
  const Deadline deadline = std::chrono::steady_clock::now() + address_.connect_timeout;
  context_.reset(address_.socket.empty()
                     ? redisConnectNonBlock(address_.host.c_str(), address_.port)
                     : redisConnectUnixNonBlock(address_.socket.c_str()));
  if (!context_) throw std::bad_alloc();
  if (context_->err != 0) throw RedisError(safe(context_->errstr));
  wait(POLLOUT, deadline, "it cannot be reached within connect_timeout_ms");
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) throw RedisError(reason(error));
  if (address_.socket.empty()) {
    const int on = 1;
    ::setsockopt(context_->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  limit_lists(*context_->reader);
  greet();
}

void RedisConnection::greet() {
  const auto expect = [&](std::initializer_list<std::string_view> words, const char* remedy) {
    const Reply reply = ask(words);
    if (is_error(*reply)) throw RedisError("it says \"" + safe(text_of(*reply)) + "\"" + remedy);
  };
  constexpr const char* kPassword = ": set KVASIR_REDIS_PASSWORD, or password_file= in the address";
  if (!address_.user.empty())
    expect({"AUTH", address_.user, address_.password}, kPassword);
  else if (!address_.password.empty())
    expect({"AUTH", address_.password}, kPassword);
  if (address_.database != 0)
    expect({"SELECT", std::to_string(address_.database)}, ": is there such a database?");
  const Reply reply = ask({"PING"});
  if (is_error(*reply) && text_of(*reply).starts_with("NOAUTH"))
    throw RedisError("it says \"" + safe(text_of(*reply)) + "\"" + kPassword);
  if (is_error(*reply)) throw RedisError("it says \"" + safe(text_of(*reply)) + "\"");
  if (text_of(*reply) != "PONG") throw RedisError("what answers there is no Redis server");
}

void RedisConnection::add(std::initializer_list<std::string_view> words) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string_view word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* command = nullptr;
  const int n =
      redisFormatCommandArgv(&command, static_cast<int>(texts.size()), texts.data(), sizes.data());
  if (n < 0) throw std::bad_alloc();
  const std::unique_ptr<char, void (*)(char*)> owner(command, redisFreeCommand);
  out_.append(command, static_cast<size_t>(n));
}

void RedisConnection::send(Deadline deadline) {
  size_t done = 0;
  while (done < out_.size()) {
    const ssize_t n = ::send(context_->fd, out_.data() + done, out_.size() - done, MSG_NOSIGNAL);
    if (n > 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      throw RedisError(reason(errno));
    if (done < out_.size()) wait(POLLOUT, deadline, "it takes nothing within timeout_ms");
  }
  out_.clear();
}

RedisConnection::Reply RedisConnection::next(Deadline deadline, uint64_t most_bytes) {
  constexpr const char* kSlow = "it does not answer within timeout_ms";
  constexpr const char* kLong = "its answer is longer than what was asked for";
  for (;;) {
    void* reply = nullptr;
    if (redisGetReplyFromReader(context_.get(), &reply) != REDIS_OK)
      throw RedisError(context_->err == REDIS_ERR_OOM
                           ? kLong
                           : "its answer makes no sense: " + safe(context_->errstr));
    if (reply) return Reply(static_cast<redisReply*>(reply));
    const size_t before = context_->reader->len;
    if (before > most_bytes) throw RedisError(kLong);
    if (redisBufferRead(context_.get()) != REDIS_OK) throw RedisError(safe(context_->errstr));
    if (std::chrono::steady_clock::now() >= deadline) throw RedisError(kSlow, true);
    if (context_->reader->len == before) wait(POLLIN, deadline, kSlow);
  }
}

RedisConnection::Reply RedisConnection::ask(std::initializer_list<std::string_view> words) {
  add(words);
  const Deadline deadline = soon();
  send(deadline);
  return next(deadline);
}

}  // namespace kvasir::tiered
