// See store_redis.h. What people ask is in store_redis_tools.cc.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_redis.h"

#include <algorithm>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
constexpr size_t kBatchBlocks = 256;

size_t batch_of(const StoreLayout& layout) {
  return std::clamp<size_t>(kBatchBytes / most_packed_bytes(layout), 1, kBatchBlocks);
}

}  // namespace

Outage::Outage(const sdk::Host& host, std::chrono::milliseconds pause, std::string begins,
               std::string consequence, std::string ends)
    : host_(host),
      pause_(pause),
      begins_(std::move(begins)),
      consequence_(std::move(consequence)),
      ends_(std::move(ends)) {}

bool Outage::pauses() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::steady_clock::now() < until_;
}

void Outage::failed(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    until_ = std::chrono::steady_clock::now() + pause_;
    if (std::exchange(told_, true)) return;
  }
  host_.log(KVASIR_LOG_WARN, begins_ + " (" + why + "): " + consequence_);
}

void Outage::worked() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(told_, false)) return;
  }
  host_.log(KVASIR_LOG_INFO, ends_);
}

StoreRedis::StoreRedis(RedisAddress address, const sdk::Host& host)
    : address_(std::move(address)),
      host_(host),
      server_(host, address_.retry, "the store " + address_.text + " does not serve",
              "prompts are computed; it is asked again every " +
                  std::to_string(address_.retry.count()) + " ms",
              "the store " + address_.text + " serves again"),
      writes_(host, address_.retry, "the store " + address_.text + " takes no blocks",
              "those of this run are not kept; it is tried again every " +
                  std::to_string(address_.retry.count()) + " ms",
              "the store " + address_.text + " takes blocks again"),
      reader_(address_),
      writer_(address_),
      packer_(address_.compress) {}

std::string StoreRedis::run_key(const Hash& run) const {
  return address_.prefix + ":" + hex(run) + ":";
}

std::string StoreRedis::key_of(const StoreName& name) const {
  return run_key(name.run) + record_text(name);
}

bool StoreRedis::open_run(const Hash& run, const std::string& about, std::string&) {
  const std::lock_guard lock(mutex_);
  run_ = run;
  about_ = about;
  about_is_new_ = true;
  return true;
}

// False when the server failed. A connection that was idle may have been closed at its other end,
// by a restart or for being idle: then a new one is tried at once.
bool StoreRedis::attempt(RedisConnection& connection, const std::function<void()>& talk) {
  if (server_.pauses()) return false;
  for (bool is_new = !connection.is_open();; is_new = true) {
    try {
      if (!connection.is_open()) connection.open();
      talk();
      server_.worked();
      return true;
    } catch (const RedisError& e) {
      connection.close();
      if (!is_new && !e.timed_out()) continue;
      server_.failed(e.what());
      return false;
    } catch (...) {
      connection.close();  // answers are under way that nobody will read
      throw;
    }
  }
}

size_t StoreRedis::read(std::span<const StoreName> names, const StoreLayout& layout,
                        std::span<Memory> to, std::string& why) {
  size_t n = 0;
  const bool served = attempt(reader_, [&] {
    why.clear();
    n = read_all(names, layout, to, why);
  });
  if (!served) std::fill(to.begin(), to.end(), nullptr);
  return served ? n : 0;
}

// A batch is asked for before the one before it is unpacked. GETRANGE says how much may come at
// most, whatever lies under the key.
size_t StoreRedis::read_all(std::span<const StoreName> names, const StoreLayout& layout,
                            std::span<Memory> to, std::string& why) {
  const size_t batch = batch_of(layout);
  const uint64_t one_more = most_packed_bytes(layout) + 1;
  const uint64_t most_bytes = 2 * batch * (one_more + 32) + (uint64_t{1} << 16);
  const std::string last = std::to_string(one_more - 1);
  size_t n_asked = 0, n_answered = 0, n_found = 0;
  const auto ask_more = [&] {
    const size_t end = std::min(n_asked + batch, names.size());
    for (; n_asked < end; ++n_asked) reader_.add({"GETRANGE", key_of(names[n_asked]), "0", last});
    reader_.send(reader_.soon());
  };
  ask_more();
  bool missing = false, is_bad = false;
  while (n_answered < n_asked) {
    const size_t end = n_asked;
    if (!missing && n_asked < names.size()) ask_more();
    const RedisConnection::Deadline deadline = reader_.soon();
    for (; n_answered < end; ++n_answered) {
      const RedisConnection::Reply reply = reader_.next(deadline, most_bytes);
      if (missing) continue;
      missing = !take(*reply, names[n_answered], layout, to[n_answered], why, is_bad);
      if (!missing) ++n_found;
    }
  }
  if (is_bad) reader_.ask({"DEL", key_of(names[n_found])});
  return n_found;
}

// Whether the block is there and whole. is_bad: the record is to be removed.
bool StoreRedis::take(const redisReply& reply, const StoreName& name, const StoreLayout& layout,
                      Memory& to, std::string& why, bool& is_bad) {
  const std::string_view text = text_of(reply);
  if (is_error(reply) && text.starts_with("WRONGTYPE")) {
    why = key_of(name) + ": what lies there is no string, and stays";
    return false;
  }
  if (is_error(reply)) throw RedisError("it says \"" + reader_.safe(text) + "\"");
  if (!is_string(reply)) throw RedisError("it answers GETRANGE with something else than a string");
  if (text.empty()) return false;
  Memory memory = allocate(layout.block_bytes);
  if (!unpack(text, name, &layout, memory.get(), why)) {
    why = key_of(name) + ": " + why + ", it is removed";
    is_bad = true;
    return false;
  }
  to = std::move(memory);
  bytes_read_ += text.size();
  return true;
}

bool StoreRedis::write(std::span<const StoreBlock> blocks, const StoreLayout& layout,
                       std::string&) {
  const size_t batch = batch_of(layout);
  for (size_t at = 0; at < blocks.size(); at += batch) {
    if (writes_.pauses()) return true;
    const auto some = blocks.subspan(at, std::min(batch, blocks.size() - at));
    if (!attempt(writer_, [&] { write_all(some, layout); })) return true;
  }
  return true;  // what failed was said
}

// Those that the server does not have; TOUCH makes the others used.
std::vector<const StoreBlock*> StoreRedis::absent(std::span<const StoreBlock> blocks) {
  for (const StoreBlock& block : blocks) writer_.add({"TOUCH", key_of(block.name)});
  const RedisConnection::Deadline deadline = writer_.soon();
  writer_.send(deadline);
  std::vector<const StoreBlock*> out;
  for (const StoreBlock& block : blocks) {
    const RedisConnection::Reply reply = writer_.next(deadline);
    if (is_error(*reply)) throw RedisError("it says \"" + writer_.safe(text_of(*reply)) + "\"");
    if (!is_integer(*reply)) throw RedisError("it answers TOUCH with something else than a number");
    if (reply->integer == 0) out.push_back(&block);
  }
  return out;
}

void StoreRedis::write_all(std::span<const StoreBlock> blocks, const StoreLayout& layout) {
  say_limit();
  const std::vector<const StoreBlock*> new_ones = absent(blocks);
  std::string run, about;
  {
    const std::lock_guard lock(mutex_);
    if (about_is_new_) run = run_key(run_), about = about_;
  }
  uint64_t n_bytes = 0;
  std::vector<uint64_t> sizes;
  for (const StoreBlock* block : new_ones) {
    const std::string& record = packer_.pack(block->name, layout, block->memory.get());
    sizes.push_back(record.size());
    n_bytes += record.size();
    writer_.add({"SET", key_of(block->name), record, "NX"});
  }
  if (!run.empty()) {
    sizes.push_back(0);
    writer_.add({"SET", run + "about", about, "NX"});
  }
  const auto begin = std::chrono::steady_clock::now();
  const RedisConnection::Deadline deadline = writer_.soon();
  writer_.send(deadline);
  std::string refused;
  for (const uint64_t bytes : sizes) {
    const RedisConnection::Reply reply = writer_.next(deadline);
    const std::string_view text = text_of(*reply);
    if (is_error(*reply))
      refused = "it says \"" + writer_.safe(text) + "\"";
    else if (text == "OK")
      bytes_written_ += bytes;
    else if (reply->type != REDIS_REPLY_NIL)  // another process was faster
      throw RedisError("it answers SET with something else than OK");
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!refused.empty()) return writes_.failed(refused);
  packer_.sent(n_bytes, took.count());
  if (sizes.empty()) return;
  writes_.worked();
  const std::lock_guard lock(mutex_);
  if (!run.empty() && run == run_key(run_)) about_is_new_ = false;
}

// Once: a server without a limit takes memory until its machine has none.
void StoreRedis::say_limit() {
  if (std::exchange(limit_told_, true)) return;
  const RedisConnection::Reply reply = writer_.ask({"INFO", "memory"});
  if (text_of(*reply).find("\r\nmaxmemory:0\r\n") != std::string_view::npos)
    host_.log(KVASIR_LOG_INFO,
              "the store " + address_.text +
                  " has no limit: set the server's maxmemory, and maxmemory-policy allkeys-lru, so "
                  "that blocks used longest ago make room");
}

}  // namespace kvasir::tiered
