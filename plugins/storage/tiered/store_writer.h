// A thread that writes sealed blocks to a store.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "plugins/storage/tiered/store_backend.h"

namespace kvasir::tiered {

class StoreWriter {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{64} << 20;     // that wait to be written
  static constexpr uint64_t kTogetherBytes = uint64_t{8} << 20;  // given to the backend at once

  // Both must outlive it.
  StoreWriter(StoreBackend& backend, const sdk::Host& host) : backend_(backend), host_(host) {}
  ~StoreWriter();  // what was added is written first
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  void start();  // the thread, once; before anything is added. May throw
  // The block's memory must not change until it is written: see finish(). Waits while kMostBytes
  // are to be written, but no longer than the backend's patience: then blocks are not kept until
  // there is room.
  void add(StoreBlock block, const StoreLayout& layout);
  void finish();  // returns when all is written

 private:
  void serve();
  bool wait_for_room(std::unique_lock<std::mutex>& lock);
  void tell(const std::string& why);  // once; under the lock

  StoreBackend& backend_;
  const sdk::Host& host_;
  std::mutex mutex_;  // of all below
  std::condition_variable something_to_do_, something_done_;
  std::deque<StoreBlock> blocks_;
  StoreLayout layout_;
  size_t n_under_way_ = 0;    // taken from blocks_, not yet written
  bool has_patience_ = true;  // false: somebody waited for room in vain, and there was none since
  bool stopping_ = false, told_ = false;
  std::thread thread_;
};

}  // namespace kvasir::tiered
