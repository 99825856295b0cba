// The host's extensions, each with what a plugin does when the host has none.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/entry.h>
#include <kvasir/ext/completion.h>
#include <kvasir/ext/log.h>
#include <kvasir/ext/scratch.h>
#include <kvasir/ext/thread_pool.h>
#include <kvasir/sdk/error.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace kvasir::sdk {

class Host {
 public:
  Host(const kvasir_host* host, const char* plugin_id)
      : host_(host),
        plugin_id_(plugin_id),
        pool_(find<kvasir_thread_pool>(host, KVASIR_EXT_THREAD_POOL)),
        scratch_(find<kvasir_scratch>(host, KVASIR_EXT_SCRATCH)),
        log_(find<kvasir_log>(host, KVASIR_EXT_LOG)),
        completion_(find<kvasir_completion>(host, KVASIR_EXT_COMPLETION)) {}

  const kvasir_host* raw() const { return host_; }  // for extensions without a wrapper here

  uint32_t max_workers() const { return pool_ ? pool_->max_workers(pool_->self) : 1; }

  // Memory node beside a worker's core, as the operating system numbers it; -1: the host does not
  // say, or the worker is bound to no core.
  int32_t node_of(uint32_t worker) const {
    if (!pool_ || !KVASIR_HAS(pool_, kvasir_thread_pool, node_of)) return -1;
    return pool_->node_of(pool_->self, worker);
  }

  // Whether workers are on several memory nodes; workers of a node are neighbours.
  bool spans_nodes() const { return node_of(0) != node_of(max_workers() - 1); }

  // fn(begin, end, worker) over [0, n) in pieces of at most `grain`, 0 = one piece per worker.
  // Serial as worker 0 without a pool, or when it is busy. Not from inside fn: the scratch of
  // worker 0 may be in use there. The first exception is rethrown here.
  template <class Fn>
  void parallel_for(uint64_t n, uint64_t grain, Fn&& fn) const {
    if (n == 0) return;
    struct Region {
      Fn& fn;
      std::atomic<bool> failed{false};
      std::exception_ptr error{};
    } region{fn};
    const kvasir_task task = [](void* user, uint64_t begin, uint64_t end,
                                uint32_t worker) noexcept {
      auto& r = *static_cast<Region*>(user);
      if (r.failed.load(std::memory_order_relaxed)) return;
      try {
        r.fn(begin, end, worker);
      } catch (...) {
        if (!r.failed.exchange(true)) r.error = std::current_exception();
      }
    };
    if (n == 1 || !pool_ || pool_->parallel_for(pool_->self, n, grain, task, &region) != 0) {
      task(&region, 0, n, 0);
    }
    if (region.error) std::rethrow_exception(region.error);
  }

  // fn(i) for i in [0, n), each a task of its own.
  template <class Fn>
  void for_each(uint64_t n, Fn&& fn) const {
    parallel_for(n, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin; i < end; ++i) fn(static_cast<uint32_t>(i));
    });
  }

  // At least `bytes`, 64-byte aligned, until this worker asks again or the step function returns.
  // Null when the host offers none: then the plugin brings its own.
  void* scratch(uint32_t worker, uint64_t bytes) const {
    return scratch_ ? scratch_->get(scratch_->self, worker, bytes) : nullptr;
  }

  // Where a storage reports transfers; null when the host offers none.
  const kvasir_completion* completion() const { return completion_; }

  void log(uint32_t level, const std::string& text) const {
    if (log_) log_->write(log_->self, level, plugin_id_, text.c_str());
  }

 private:
  template <class T>
  static const T* find(const kvasir_host* host, const char* id) {
    return host ? static_cast<const T*>(host->get_extension(host->self, id)) : nullptr;
  }

  const kvasir_host* host_;
  const char* plugin_id_;
  const kvasir_thread_pool* pool_;
  const kvasir_scratch* scratch_;
  const kvasir_log* log_;
  const kvasir_completion* completion_;
};

// n elements of scratch for one worker, 64-byte aligned: the host's, or its own when the host has
// none to give.
template <class T>
class Scratch {
 public:
  Scratch(const Host& host, uint32_t worker, uint64_t n) : n_(n) {
    if (n == 0) return;
    data_ = static_cast<T*>(host.scratch(worker, n * sizeof(T)));
    if (data_) return;
    own_.reset(::operator new(n * sizeof(T), kAlignment));
    data_ = static_cast<T*>(own_.get());
  }
  T* data() const { return data_; }
  std::span<T> span() const { return {data_, n_}; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<void, Free> own_;
  T* data_ = nullptr;
  uint64_t n_;
};

}  // namespace kvasir::sdk
