// What storage.store says of a Redis server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "plugins/storage/tiered/store_pack.h"

namespace kvasir::tiered {

// redis://[USER@]HOST[:PORT][/DATABASE][?KEY=VALUE&...], or redis+unix://[USER@]/SOCKET[?...],
// there with db=DATABASE among the keys. Nothing is percent-encoded.
struct RedisAddress {
  std::string text;    // as the user gave it: it holds no password
  std::string host;    // or:
  std::string socket;  // a path
  uint16_t port = 6379;
  uint32_t database = 0;
  std::string user, password;  // empty: none
  std::string prefix = "kvasir";
  std::chrono::milliseconds connect_timeout{1000};
  std::chrono::milliseconds timeout{2000};  // of what is asked at once, 8 MiB or one block
  std::chrono::milliseconds retry{5000};    // after a failure nothing is asked for so long
  Compress compress = Compress::kAuto;
};

bool is_redis_address(const std::string& text);
// The password comes from the file that password_file= names, or from KVASIR_REDIS_PASSWORD. Throws
// sdk::Error, which never repeats a password.
RedisAddress parse_redis_address(const std::string& text);

}  // namespace kvasir::tiered
