// The thread-local behind breadcrumb(), and what the other threads may see of it.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/breadcrumb.h"

#include <array>
#include <atomic>
#include <mutex>
#include <set>

namespace kvasir {
namespace {

// Constant initialisation: no guard, so a signal handler may read it at any moment.
constinit thread_local Breadcrumb current;

// A thread's crumb for running_calls(). Only its thread writes; a reader that sees the same count
// before and after has seen one crumb, or one that is being written: it looks again later.
struct alignas(64) Slot {
  std::atomic<uint64_t> n_changes{0};
  std::atomic<const char*> plugin{nullptr}, path{nullptr}, function{nullptr};
  std::atomic<uint32_t> layer{0};
  std::atomic<bool> is_taken{false};
};
std::array<Slot, 256> slots;

// The thread's slot, while it lives. Threads beyond the last slot have none.
class OwnSlot {
 public:
  OwnSlot() {
    for (Slot& slot : slots)
      if (!slot.is_taken.exchange(true)) {
        slot_ = &slot;
        return;
      }
  }
  ~OwnSlot() {
    if (slot_) slot_->is_taken.store(false);
  }
  void show(const Breadcrumb& crumb) {
    if (!slot_) return;
    const uint64_t n = slot_->n_changes.load(std::memory_order_relaxed);
    slot_->plugin.store(crumb.plugin, std::memory_order_relaxed);
    slot_->path.store(crumb.path, std::memory_order_relaxed);
    slot_->function.store(crumb.function, std::memory_order_relaxed);
    slot_->layer.store(crumb.layer, std::memory_order_relaxed);
    slot_->n_changes.store(n + 1, std::memory_order_release);
  }

 private:
  Slot* slot_ = nullptr;
};
thread_local OwnSlot own;

}  // namespace

const char* kept_text(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string>* const texts = new std::set<std::string>;  // outlives all threads
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

const Breadcrumb& breadcrumb() { return current; }

BreadcrumbScope::BreadcrumbScope(const Breadcrumb& crumb) : before_(current) {
  current = crumb;
  own.show(current);
}

BreadcrumbScope::~BreadcrumbScope() {
  current = before_;
  own.show(current);
}

std::vector<RunningCall> running_calls() {
  std::vector<RunningCall> calls;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    const uint64_t n = slot.n_changes.load(std::memory_order_acquire);
    const Breadcrumb crumb{
        slot.plugin.load(std::memory_order_relaxed), slot.path.load(std::memory_order_relaxed),
        slot.function.load(std::memory_order_relaxed), slot.layer.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (crumb.plugin && slot.n_changes.load(std::memory_order_relaxed) == n)
      calls.push_back({i, n, crumb});
  }
  return calls;
}

}  // namespace kvasir
