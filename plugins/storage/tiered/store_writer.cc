// See store_writer.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_writer.h"

#include <exception>
#include <utility>
#include <vector>

namespace kvasir::tiered {

StoreWriter::~StoreWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_to_do_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool StoreWriter::wait_for_room(std::unique_lock<std::mutex>& lock) {
  const auto has_room = [&] {
    const size_t n = blocks_.size() + n_under_way_;
    return n == 0 || (n + 1) * layout_.block_bytes <= kMostBytes;
  };
  const auto patience = backend_.patience();
  if (!patience) {
    something_done_.wait(lock, has_room);
    return true;
  }
  has_patience_ = has_patience_ ? something_done_.wait_for(lock, *patience, has_room) : has_room();
  return has_patience_;
}

void StoreWriter::start() {
  thread_ = std::thread([this] { serve(); });
}

void StoreWriter::add(StoreBlock block, const StoreLayout& layout) {
  std::unique_lock lock(mutex_);
  layout_ = layout;
  if (!wait_for_room(lock)) return tell("it is slower than the prompt is computed");
  blocks_.push_back(std::move(block));
  something_to_do_.notify_one();
}

void StoreWriter::tell(const std::string& why) {
  if (!std::exchange(told_, true))
    host_.log(KVASIR_LOG_WARN, "the store in " + backend_.where() + " takes no more (" + why +
                                   "): the run goes on, such blocks are not kept");
}

void StoreWriter::finish() {
  std::unique_lock lock(mutex_);
  something_done_.wait(lock, [&] { return blocks_.empty() && n_under_way_ == 0; });
}

void StoreWriter::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    something_to_do_.wait(lock, [&] { return stopping_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    const StoreLayout layout = layout_;
    std::vector<StoreBlock> taken;
    do {
      taken.push_back(std::move(blocks_.front()));
      blocks_.pop_front();
    } while (!blocks_.empty() && (taken.size() + 1) * layout.block_bytes <= kTogetherBytes);
    n_under_way_ = taken.size();
    lock.unlock();
    std::string why;
    bool done = false;
    try {
      done = backend_.write(taken, layout, why);
    } catch (const std::exception& e) {
      why = e.what();
    }
    taken.clear();
    lock.lock();
    if (!done) tell(why);
    n_under_way_ = 0;
    something_done_.notify_all();
  }
}

}  // namespace kvasir::tiered
