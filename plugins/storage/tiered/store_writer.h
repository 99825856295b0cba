// A thread that writes sealed blocks to a store folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/store_folder.h"

namespace kvasir::tiered {

class StoreWriter {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // that wait to be written

  // Both must outlive it.
  StoreWriter(StoreFolder& folder, const sdk::Host& host) : folder_(folder), host_(host) {}
  ~StoreWriter();  // what was added is written first
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  struct Block {
    StoreName name;
    Memory memory;  // must not change until it is written: see finish()
  };
  // Waits while kMostBytes are to be written.
  void add(Block block, const StoreLayout& layout);
  void finish();  // returns when all is written

 private:
  void serve();
  void tell(const std::string& why);  // once; under the lock

  StoreFolder& folder_;
  const sdk::Host& host_;
  std::mutex mutex_;  // of all below
  std::condition_variable something_to_do_, something_done_;
  std::deque<Block> blocks_;
  StoreLayout layout_;
  bool busy_ = false, stopping_ = false, told_ = false;
  std::thread thread_;
};

}  // namespace kvasir::tiered
