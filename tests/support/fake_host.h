// A host as small as it can be, for tests that call plugins through the C ABI: thread pool (real
// threads), scratch, log, and completions that can be waited for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace kvasir::test {

class FakeHost {
 public:
  // workers = 0: a host without any extension.
  // nodes: of each worker; empty: a host that does not say.
  explicit FakeHost(uint32_t workers = 0, std::vector<int32_t> nodes = {})
      : workers_(workers), nodes_(std::move(nodes)), scratch_memory_(workers) {
    host_ = {sizeof host_, KVASIR_ABI_MAJOR,         KVASIR_ABI_MINOR_MIN, KVASIR_ABI_MINOR, "fake",
             "0",          static_cast<void*>(this), &get_extension};
    pool_ = {
        sizeof pool_, 0, this, &max_workers, &parallel_for, nodes_.empty() ? nullptr : &node_of};
    scratch_ = {sizeof scratch_, 0, this, &scratch};
    log_ = {sizeof log_, 0, this, &write};
    completion_ = {sizeof completion_, 0, this, &complete};
  }
  FakeHost(const FakeHost&) = delete;
  const kvasir_host* host() const { return &host_; }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  // Called when a plugin hands work to the pool, before it starts.
  std::function<void()> before_tasks;

  // kvasir.completion/1, beside what `workers` brings.
  void offer_completions() { has_completions_ = true; }
  struct Report {
    int times = 0;
    kvasir_status status = KVASIR_OK;
    std::vector<kvasir_status> blocks;
  };
  // Of a ticket; times = 0 when none came within ten seconds.
  Report wait(uint64_t ticket) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return reports_.count(ticket) != 0; });
    return reports_[ticket];
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static FakeHost& from(void* self) { return *static_cast<FakeHost*>(self); }

  static const void* get_extension(void* self, const char* id) noexcept {
    FakeHost& h = from(self);
    if (h.has_completions_ && std::strcmp(id, KVASIR_EXT_COMPLETION) == 0) return &h.completion_;
    if (h.workers_ == 0) return nullptr;
    if (std::strcmp(id, KVASIR_EXT_THREAD_POOL) == 0) return &h.pool_;
    if (std::strcmp(id, KVASIR_EXT_SCRATCH) == 0) return &h.scratch_;
    return std::strcmp(id, KVASIR_EXT_LOG) == 0 ? &h.log_ : nullptr;
  }
  static uint32_t max_workers(void* self) noexcept { return from(self).workers_; }
  static int32_t node_of(void* self, uint32_t worker) noexcept {
    return from(self).nodes_.at(worker);
  }
  static int32_t parallel_for(void* self, uint64_t n, uint64_t grain, kvasir_task task,
                              void* user) noexcept {
    if (from(self).before_tasks) from(self).before_tasks();
    const uint64_t workers = from(self).workers_;
    const uint64_t piece = grain != 0 ? grain : (n + workers - 1) / workers;
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < workers; ++w) {
      threads.emplace_back([=] {
        for (uint64_t begin = w * piece; begin < n; begin += workers * piece) {
          task(user, begin, begin + piece < n ? begin + piece : n, w);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return 0;
  }
  static void* scratch(void* self, uint32_t worker, uint64_t bytes) noexcept {
    auto& memory = from(self).scratch_memory_[worker];
    memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    return memory.get();
  }
  static void write(void* self, uint32_t, const char* id, const char* text) noexcept {
    const std::lock_guard lock(from(self).mutex_);
    from(self).lines_.push_back(std::string(id) + ": " + text);
  }
  static void complete(void* self, uint64_t ticket, kvasir_status status,
                       const kvasir_status* block_status, uint32_t n_blocks, uint64_t) noexcept {
    FakeHost& h = from(self);
    const std::lock_guard lock(h.mutex_);
    Report& report = h.reports_[ticket];
    report.times += 1;
    report.status = status;
    for (uint32_t i = 0; i < n_blocks; ++i)
      report.blocks.push_back(block_status ? block_status[i] : status);
    h.arrived_.notify_all();
  }

  uint32_t workers_;
  std::vector<int32_t> nodes_;
  std::vector<std::unique_ptr<std::byte[], Free>> scratch_memory_;
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  kvasir_host host_{};
  kvasir_thread_pool pool_{};
  kvasir_scratch scratch_{};
  kvasir_log log_{};
  kvasir_completion completion_{};
  bool has_completions_ = false;
  std::condition_variable arrived_;
  std::map<uint64_t, Report> reports_;
};

// One that takes completions before the plugin asks, which it does once.
struct CompletingHost : FakeHost {
  CompletingHost() : FakeHost(1) { offer_completions(); }
};

}  // namespace kvasir::test
