// A connection to a Redis server on which nothing takes longer than it may.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hiredis/hiredis.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "plugins/storage/tiered/redis_address.h"

namespace kvasir::tiered {

// The connection is of no use any more. The text says why, in one line, without the password.
class RedisError : public std::runtime_error {
 public:
  explicit RedisError(const std::string& why, bool timed_out = false)
      : std::runtime_error(why), timed_out_(timed_out) {}
  bool timed_out() const { return timed_out_; }

 private:
  bool timed_out_;
};

// hiredis forms commands and parses answers. Its own sending is not used: it would raise SIGPIPE
// when a server goes.
class RedisConnection {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  struct FreeReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  // `address` must outlive it.
  explicit RedisConnection(const RedisAddress& address)
      : address_(address), context_(nullptr, redisFree) {}

  bool is_open() const { return static_cast<bool>(context_); }
  // Also says who we are, chooses the database and waits for an answer.
  void open();
  void close();

  // A deadline for one more answer from now on.
  Deadline soon() const { return std::chrono::steady_clock::now() + address_.timeout; }
  // Commands are sent together, by send(); next() gives the answer to the oldest.
  void add(std::initializer_list<std::string_view> words);
  void send(Deadline deadline);
  // most_bytes: of all answers that are under way; more is an error.
  Reply next(Deadline deadline, uint64_t most_bytes = uint64_t{1} << 20);
  // add(), send() and next() of one command.
  Reply ask(std::initializer_list<std::string_view> words);

  // For the log: one line, without the password.
  std::string safe(std::string_view text) const;

 private:
  void wait(short events, Deadline deadline, const char* what) const;
  void greet();

  const RedisAddress& address_;
  std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
  std::string out_;  // to be sent
};

inline std::string_view text_of(const redisReply& reply) {
  return reply.str ? std::string_view(reply.str, reply.len) : std::string_view();
}
inline bool is_error(const redisReply& reply) { return reply.type == REDIS_REPLY_ERROR; }
inline bool is_string(const redisReply& reply) { return reply.type == REDIS_REPLY_STRING; }
inline bool is_integer(const redisReply& reply) { return reply.type == REDIS_REPLY_INTEGER; }

}  // namespace kvasir::tiered
