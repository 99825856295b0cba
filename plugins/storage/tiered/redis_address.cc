// See redis_address.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/redis_address.h"

#include <kvasir/sdk/error.h>
#include <kvasir/status.h>

#include <charconv>
#include <cstdlib>
#include <fstream>

namespace kvasir::tiered {
namespace {

constexpr const char* kPasswordVariable = "KVASIR_REDIS_PASSWORD";
constexpr std::string_view kTcp = "redis://", kUnix = "redis+unix://", kTls = "rediss://";

[[noreturn]] void fail(const std::string& why) {
  sdk::fail_invalid("tiered: store = \"redis://…\": " + why);
}

// Takes what stands before `mark` from the front of `rest`, or all of it.
std::string_view take_before(std::string_view& rest, char mark) {
  const size_t at = rest.find(mark);
  const std::string_view out = rest.substr(0, at);
  rest = at == rest.npos ? std::string_view() : rest.substr(at + 1);
  return out;
}

uint32_t number(std::string_view text, const std::string& what, uint32_t least, uint32_t most) {
  uint32_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < least || out > most)
    fail(what + " is no number from " + std::to_string(least) + " to " + std::to_string(most));
  return out;
}

std::string password_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line))
    throw sdk::Error(KVASIR_ERR_IO, "tiered: store = \"redis://…\": password_file=" + path +
                                        ": it cannot be read, or is empty");
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

Compress compress_of(std::string_view text) {
  if (text == "auto") return Compress::kAuto;
  if (text == "always") return Compress::kAlways;
  if (text == "never") return Compress::kNever;
  fail("compress= is \"auto\", \"always\" or \"never\"");
}

std::string prefix_of(std::string_view text) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";
  if (text.empty() || text.size() > 64 || text.find_first_not_of(kAllowed) != text.npos)
    fail("prefix= is 1 to 64 letters, digits and _ - . :");
  return std::string(text);
}

void set(RedisAddress& out, std::string_view key, std::string_view value) {
  constexpr uint32_t kMostMs = 600'000;
  const auto ms = [&](uint32_t least) {
    return std::chrono::milliseconds(number(value, std::string(key) + "=", least, kMostMs));
  };
  if (key == "password_file") {
    out.password = password_in(std::string(value));
  } else if (key == "prefix") {
    out.prefix = prefix_of(value);
  } else if (key == "db") {
    out.database = number(value, "db=", 0, INT32_MAX);
  } else if (key == "connect_timeout_ms") {
    out.connect_timeout = ms(1);
  } else if (key == "timeout_ms") {
    out.timeout = ms(1);
  } else if (key == "retry_ms") {
    out.retry = ms(0);
  } else if (key == "compress") {
    out.compress = compress_of(value);
  } else if (key == "password") {
    fail(std::string("a password here is seen in lists of processes and in logs: take it out, and "
                     "set ") +
         kPasswordVariable + " or password_file=PATH");
  } else {
    fail("unknown key " + std::string(key) +
         "; there are prefix, password_file, db, connect_timeout_ms, timeout_ms, retry_ms, "
         "compress");
  }
}

void set_server(RedisAddress& out, std::string_view where) {
  if (where.starts_with('[')) {  // IPv6
    where.remove_prefix(1);
    out.host = take_before(where, ']');
    if (where.starts_with(':')) where.remove_prefix(1);
  } else {
    out.host = take_before(where, ':');
  }
  if (out.host.empty()) fail("it names no host");
  if (!where.empty()) out.port = static_cast<uint16_t>(number(where, "the port", 1, 65535));
}

}  // namespace

bool is_redis_address(const std::string& text) {
  return text.starts_with(kTcp) || text.starts_with(kUnix) || text.starts_with(kTls);
}

RedisAddress parse_redis_address(const std::string& text) {
  RedisAddress out;
  out.text = text;
  std::string_view rest = text;
  if (rest.starts_with(kTls))
    fail("TLS (rediss://) is not spoken here: lead it through a tunnel (stunnel) and name that");
  const bool is_unix = rest.starts_with(kUnix);
  rest.remove_prefix(is_unix ? kUnix.size() : kTcp.size());
  std::string_view where = take_before(rest, '?');
  if (const size_t at = where.rfind('@'); at != where.npos) {
    const std::string_view user = where.substr(0, at);
    if (user.find(':') != user.npos) set(out, "password", "");
    out.user = user;
    where.remove_prefix(at + 1);
  }
  if (text.find('%') != text.npos) fail("nothing in it is percent-encoded: write it plainly");
  if (const char* password = std::getenv(kPasswordVariable)) out.password = password;
  if (is_unix) {
    if (!where.starts_with('/')) fail("redis+unix:// is followed by an absolute path");
    out.socket = where;
  } else {
    set_server(out, take_before(where, '/'));
    if (!where.empty()) out.database = number(where, "the database", 0, INT32_MAX);
  }
  while (!rest.empty()) {
    std::string_view value = take_before(rest, '&');
    const std::string_view key = take_before(value, '=');
    set(out, key, value);
  }
  if (!out.user.empty() && out.password.empty())
    fail("it names a user: set " + std::string(kPasswordVariable) + " or password_file=PATH");
  return out;
}

}  // namespace kvasir::tiered
