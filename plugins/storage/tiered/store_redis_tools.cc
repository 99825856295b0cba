// What `kvasir cache` asks of a server. SCAN finds the keys, since KEYS would stop the server for
// everybody.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/error.h>
#include <kvasir/status.h>

#include <algorithm>
#include <ctime>

#include "plugins/storage/tiered/store_redis.h"

namespace kvasir::tiered {
namespace {

constexpr size_t kTogether = 1000;  // keys of one SCAN, and of what is asked of them
constexpr size_t kRecordsTogether = 8;
constexpr uint64_t kMostRecordBytes = uint64_t{2} << 30;

bool is_list(const redisReply& reply, size_t n) {
  return reply.type == REDIS_REPLY_ARRAY && reply.elements >= n;
}

}  // namespace

// fn over a connection of its own, which ends with it.
template <class Fn>
auto StoreRedis::ask(const Fn& fn) const {
  try {
    RedisConnection connection(address_);
    connection.open();
    connection.ask({"CLIENT", "NO-TOUCH", "on"});  // since Redis 7.2: looking is not using
    return fn(connection);
  } catch (const RedisError& e) {
    throw sdk::Error(KVASIR_ERR_IO, "tiered: store = \"" + address_.text + "\": " + e.what());
  }
}

std::vector<std::string> StoreRedis::keys(RedisConnection& connection,
                                          const kvasir_store_filter* filter) const {
  const bool one_run = filter && (filter->flags & KVASIR_STORE_ONE_RUN) != 0;
  const std::string pattern =
      (one_run ? run_key({filter->run[0], filter->run[1]}) : address_.prefix + ":") + "*";
  std::vector<std::string> out;
  std::string cursor = "0";
  do {
    const RedisConnection::Reply reply =
        connection.ask({"SCAN", cursor, "MATCH", pattern, "COUNT", std::to_string(kTogether)});
    if (is_error(*reply)) throw RedisError("it says \"" + connection.safe(text_of(*reply)) + "\"");
    if (!is_list(*reply, 2) || !is_string(*reply->element[0]) || !is_list(*reply->element[1], 0))
      throw RedisError("its answer to SCAN makes no sense");
    cursor = text_of(*reply->element[0]);
    for (size_t i = 0; i < reply->element[1]->elements; ++i)
      out.emplace_back(text_of(*reply->element[1]->element[i]));
  } while (cursor != "0");
  std::sort(out.begin(), out.end());  // SCAN may name one twice
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// by_age: an error where the server does not know when keys were used.
std::vector<StoreEntry> StoreRedis::entries(RedisConnection& connection,
                                            const kvasir_store_filter* filter, bool by_age) const {
  std::vector<StoreEntry> all;
  const size_t run_begin = address_.prefix.size() + 1, run_end = run_begin + 32;
  for (const std::string& key : keys(connection, filter)) {
    if (key.size() <= run_end || key[run_end] != ':') continue;
    const auto run = hash_of(key.substr(run_begin, 32));
    const auto name = run ? record_name(*run, key.substr(run_end + 1)) : std::nullopt;
    if (name) all.push_back({key, *name});
  }
  std::vector<StoreEntry> out;
  const auto now = static_cast<int64_t>(std::time(nullptr));
  for (size_t begin = 0; begin < all.size(); begin += kTogether) {
    const size_t end = std::min(begin + kTogether, all.size());
    for (size_t i = begin; i < end; ++i) {
      connection.add({"OBJECT", "IDLETIME", all[i].place});
      connection.add({"MEMORY", "USAGE", all[i].place});
    }
    const RedisConnection::Deadline deadline = connection.soon();
    connection.send(deadline);
    for (size_t i = begin; i < end; ++i) {
      const RedisConnection::Reply idle = connection.next(deadline);
      const RedisConnection::Reply bytes = connection.next(deadline);
      if (is_error(*bytes))
        throw RedisError("it says \"" + connection.safe(text_of(*bytes)) + "\"");
      if (is_error(*idle) && by_age)
        throw RedisError("it does not tell when blocks were used: \"" +
                         connection.safe(text_of(*idle)) + "\"");
      if (!is_integer(*bytes)) continue;  // it has gone meanwhile
      all[i].bytes = static_cast<uint64_t>(std::max<int64_t>(0, bytes->integer));
      all[i].used = is_integer(*idle) ? now - idle->integer : now;
      out.push_back(all[i]);
    }
  }
  return out;
}

std::vector<kvasir_store_run> StoreRedis::list() const {
  return ask([&](RedisConnection& connection) {
    return runs_of(
        entries(connection, nullptr, false),
        [&](const Hash& run) {
          const auto reply = connection.ask({"GETRANGE", run_key(run) + "about", "0", "127"});
          return std::string(is_string(*reply) ? text_of(*reply) : "");
        },
        [&](const StoreEntry& entry) -> uint32_t {
          const RedisConnection::Reply reply = connection.ask(
              {"GETRANGE", entry.place, "0", std::to_string(sizeof(StoreHeader) - 1)});
          const auto header = is_string(*reply) ? peek(text_of(*reply)) : std::nullopt;
          return header ? header->layout.block_size : 0;
        });
  });
}

kvasir_store_result StoreRedis::verify(const kvasir_store_filter& filter,
                                       const sdk::BadRecord& bad) const {
  return ask([&](RedisConnection& connection) {
    kvasir_store_result out{};
    out.struct_size = sizeof out;
    const std::vector<StoreEntry> all = entries(connection, &filter, false);
    for (size_t begin = 0; begin < all.size(); begin += kRecordsTogether) {
      const size_t end = std::min(begin + kRecordsTogether, all.size());
      for (size_t i = begin; i < end; ++i) connection.add({"GETRANGE", all[i].place, "0", "-1"});
      connection.send(connection.soon());
      std::vector<const StoreEntry*> to_remove;
      for (size_t i = begin; i < end; ++i) {
        const RedisConnection::Reply reply = connection.next(connection.soon(), kMostRecordBytes);
        std::string why = is_error(*reply) ? connection.safe(text_of(*reply)) : "it is no string";
        if (is_string(*reply) && text_of(*reply).empty()) continue;  // it has gone meanwhile
        ++out.n_files;
        out.bytes += all[i].bytes;
        if (is_string(*reply) && unpack(text_of(*reply), all[i].name, nullptr, nullptr, why))
          continue;
        ++out.n_bad;
        out.bad_bytes += all[i].bytes;
        bad(all[i].place, why);
        if ((filter.flags & KVASIR_STORE_DELETE) != 0) to_remove.push_back(&all[i]);
      }
      for (const StoreEntry* entry : to_remove) {
        if (connection.ask({"DEL", entry->place})->integer != 1) continue;
        ++out.n_removed;
        out.removed_bytes += entry->bytes;
      }
    }
    return out;
  });
}

kvasir_store_result StoreRedis::prune(const kvasir_store_filter& filter) const {
  return ask([&](RedisConnection& connection) {
    const bool by_age = (filter.flags & KVASIR_STORE_OLDER) != 0;
    return tiered::prune(
        entries(connection, &filter, by_age), filter, [&](const StoreEntry& entry, bool& gone) {
          const RedisConnection::Reply reply = connection.ask({"DEL", entry.place});
          if (is_error(*reply))
            throw RedisError("it says \"" + connection.safe(text_of(*reply)) + "\"");
          gone = reply->integer == 0;
          return reply->integer == 1;
        });
  });
}

}  // namespace kvasir::tiered
