// See store_writer.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_writer.h"

#include <exception>
#include <system_error>
#include <utility>

namespace kvasir::tiered {

StoreWriter::~StoreWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_to_do_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StoreWriter::add(Block block, const StoreLayout& layout) {
  std::unique_lock lock(mutex_);
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& e) {
    return tell(e.what());
  }
  something_done_.wait(lock, [&] {
    return blocks_.empty() || (blocks_.size() + 1) * layout.block_bytes <= kMostBytes;
  });
  layout_ = layout;
  blocks_.push_back(std::move(block));
  something_to_do_.notify_one();
}

void StoreWriter::tell(const std::string& why) {
  if (!std::exchange(told_, true))
    host_.log(KVASIR_LOG_WARN, "the store in " + folder_.path() + " takes no more (" + why +
                                   "): the run goes on, its blocks are not kept");
}

void StoreWriter::finish() {
  std::unique_lock lock(mutex_);
  something_done_.wait(lock, [&] { return blocks_.empty() && !busy_; });
}

void StoreWriter::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    something_to_do_.wait(lock, [&] { return stopping_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    busy_ = true;
    const StoreLayout layout = layout_;
    lock.unlock();
    std::string why;
    bool done = false;
    try {
      done = folder_.write(block.name, layout, block.memory.get(), why);
    } catch (const std::exception& e) {
      why = e.what();
    }
    lock.lock();
    if (!done) tell(why);
    busy_ = false;
    something_done_.notify_all();
  }
}

}  // namespace kvasir::tiered
