// A Redis server where blocks outlive the process, for machines that share it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/storage/tiered/redis_connection.h"
#include "plugins/storage/tiered/store_backend.h"
#include "plugins/storage/tiered/store_entries.h"

namespace kvasir::tiered {

// Something that fails for a time: it is left alone for a while after each failure, and people are
// told when that begins and when it ends.
class Outage {
 public:
  // The log says "BEGINS (why): CONSEQUENCE", and ENDS.
  Outage(const sdk::Host& host, std::chrono::milliseconds pause, std::string begins,
         std::string consequence, std::string ends);
  bool pauses() const;
  void failed(const std::string& why);
  void worked();

 private:
  const sdk::Host& host_;
  const std::chrono::milliseconds pause_;
  const std::string begins_, consequence_, ends_;
  mutable std::mutex mutex_;  // of the next two
  std::chrono::steady_clock::time_point until_{};
  bool told_ = false;
};

// PREFIX:RUN:NAME-BLOCK-LAYER holds a record of store_pack.h, PREFIX:RUN:about a text. Keys with
// other names are never touched. The server limits itself by its maxmemory. A server that fails in
// whatever way is a store without blocks, until it is tried again.
class StoreRedis final : public StoreBackend {
 public:
  // Asks nothing of the server yet.
  StoreRedis(RedisAddress address, const sdk::Host& host);

  std::string where() const override { return address_.text; }
  bool open_run(const Hash& run, const std::string& about, std::string& why) override;
  size_t read(std::span<const StoreName> names, const StoreLayout& layout, std::span<Memory> to,
              std::string& why) override;
  bool write(std::span<const StoreBlock> blocks, const StoreLayout& layout,
             std::string& why) override;
  std::optional<std::chrono::milliseconds> patience() const override { return address_.timeout; }

  std::vector<kvasir_store_run> list() const override;
  kvasir_store_result verify(const kvasir_store_filter& filter,
                             const sdk::BadRecord& bad) const override;
  kvasir_store_result prune(const kvasir_store_filter& filter) const override;

  uint64_t bytes_read() const override { return bytes_read_; }
  uint64_t bytes_written() const override { return bytes_written_; }

 private:
  std::string run_key(const Hash& run) const;
  std::string key_of(const StoreName& name) const;

  // talk(), over `connection`, opened where it is not. False when the server failed.
  bool attempt(RedisConnection& connection, const std::function<void()>& talk);
  size_t read_all(std::span<const StoreName> names, const StoreLayout& layout, std::span<Memory> to,
                  std::string& why);
  bool take(const redisReply& reply, const StoreName& name, const StoreLayout& layout, Memory& to,
            std::string& why, bool& is_bad);
  void write_all(std::span<const StoreBlock> blocks, const StoreLayout& layout);
  std::vector<const StoreBlock*> absent(std::span<const StoreBlock> blocks);
  void say_limit();

  // Of a connection of its own, for people.
  template <class Fn>
  auto ask(const Fn& fn) const;
  std::vector<StoreEntry> entries(RedisConnection& connection, const kvasir_store_filter* filter,
                                  bool by_age) const;
  std::vector<std::string> keys(RedisConnection& connection,
                                const kvasir_store_filter* filter) const;

  const RedisAddress address_;
  const sdk::Host& host_;
  Outage server_, writes_;
  RedisConnection reader_, writer_;
  Packer packer_;     // of write()
  std::mutex mutex_;  // of the next three
  Hash run_{};
  std::string about_;
  bool about_is_new_ = false;
  bool limit_told_ = false;  // of write()
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
};

}  // namespace kvasir::tiered
