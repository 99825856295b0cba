// kvasir_host and its extensions. Everything a plugin passes in is checked; nothing throws out.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/host.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/plugin/breadcrumb.h"
#include "core/plugin/check/plugin_checks.h"
#include "core/plugin/thread_state.h"

namespace kvasir {
namespace {

constexpr size_t kMaxLogBytes = 4096;
constexpr size_t kScratchAlignment = 64;
constexpr uint32_t kMaxReportedBlocks = 1u << 22;

// One line: what a plugin writes must not forge other lines of the log.
std::string one_line(const char* text, size_t max_bytes) {
  if (!text) return "(null)";
  std::string line(text, strnlen(text, max_bytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

// Grows and never shrinks; one per worker, so that first touch places it on the worker's node.
struct Scratch {
  void* data = nullptr;
  uint64_t bytes = 0;
};

struct Report {
  bool is_done = false;
  Completion completion{};
};

// A region inside a region is refused: the plugin then runs its loop itself (thread_pool.h).
thread_local bool inside_region = false;
thread_local bool is_beside_pool = false;

}  // namespace

BesidePool::BesidePool() { is_beside_pool = true; }
BesidePool::~BesidePool() { is_beside_pool = false; }

struct HostServices::Impl {
  Impl(ThreadPool& pool_, Log log_)
      : pool(pool_), sink(std::move(log_)), scratch(pool.n_workers() + 1) {
    host = {sizeof(kvasir_host),
            KVASIR_ABI_MAJOR,
            KVASIR_ABI_MINOR_MIN,
            KVASIR_ABI_MINOR,
            "kvasir",
            KVASIR_VERSION_TEXT,
            this,
            &Impl::get_extension};
    thread_pool = {sizeof(kvasir_thread_pool),
                   0,
                   this,
                   &Impl::max_workers,
                   &Impl::parallel_for,
                   &Impl::node_of};
    scratch_table = {sizeof(kvasir_scratch), 0, this, &Impl::get_scratch};
    log_table = {sizeof(kvasir_log), 0, this, &Impl::write_log};
    completion_table = {sizeof(kvasir_completion), 0, this, &Impl::complete};
  }
  ~Impl() {
    for (const Scratch& s : scratch) std::free(s.data);
  }

  static Impl& of(void* self) { return *static_cast<Impl*>(self); }

  void log(uint32_t level, const std::string& plugin, const std::string& text) noexcept {
    try {
      const std::lock_guard lock(log_mutex);
      if (sink) sink(std::min(level, KVASIR_LOG_ERROR), plugin, text);
    } catch (...) {  // a log that fails must not take the run down
    }
  }

  void tell_restored(const Breadcrumb& crumb) noexcept {
    try {
      log(KVASIR_LOG_WARN, crumb.plugin ? crumb.plugin : "a plugin",
          restored_text(crumb.function ? crumb.function : "its loop", ThreadState::kFloatControl));
    } catch (...) {  // no memory for the line
    }
  }

  static const void* get_extension(void* self, const char* id) noexcept {
    if (!self || !id) return nullptr;
    Impl& impl = of(self);
    if (std::strcmp(id, KVASIR_EXT_THREAD_POOL) == 0) return &impl.thread_pool;
    if (std::strcmp(id, KVASIR_EXT_SCRATCH) == 0) return &impl.scratch_table;
    if (std::strcmp(id, KVASIR_EXT_LOG) == 0) return &impl.log_table;
    if (std::strcmp(id, KVASIR_EXT_COMPLETION) == 0) return &impl.completion_table;
    return nullptr;
  }

  static uint32_t max_workers(void* self) noexcept { return of(self).pool.n_workers(); }

  static int32_t node_of(void* self, uint32_t worker) noexcept {
    const ThreadPool& pool = of(self).pool;
    return worker < pool.n_workers() ? pool.os_node_of(worker) : -1;
  }

  static int32_t parallel_for(void* self, uint64_t n_tasks, uint64_t grain, kvasir_task task,
                              void* user) noexcept {
    if (!task || inside_region || is_beside_pool) return 1;
    const Breadcrumb crumb = breadcrumb();
    struct Call {
      Impl& impl;
      kvasir_task task;
      void* user;
      const Breadcrumb& crumb;
    } const call{of(self), task, user, crumb};
    try {
      // One pointer, so std::function does not allocate.
      of(self).pool.parallel_for(n_tasks, grain,
                                 [&call](uint64_t begin, uint64_t end, uint32_t worker) {
                                   const BreadcrumbScope scope(call.crumb);
                                   const uint32_t control = float_control();
                                   inside_region = true;
                                   call.task(call.user, begin, end, worker);
                                   inside_region = false;
                                   if (float_control() == control) return;
                                   set_float_control(control);
                                   call.impl.tell_restored(call.crumb);
                                 });
    } catch (...) {  // tasks cannot throw, so nothing has run
      return 1;
    }
    return 0;
  }

  static void* get_scratch(void* self, uint32_t worker, uint64_t bytes) noexcept {
    Impl& impl = of(self);
    if (worker >= impl.pool.n_workers() || bytes > (UINT64_C(1) << 40)) return nullptr;
    Scratch& s = is_beside_pool ? impl.scratch.back() : impl.scratch[worker];
    if (s.data && bytes <= s.bytes) return s.data;
    const uint64_t rounded = std::max<uint64_t>(bytes + kScratchAlignment - 1, kScratchAlignment) &
                             ~uint64_t{kScratchAlignment - 1};
    std::free(s.data);
    impl.scratch_total -= s.bytes;
    s.data = std::aligned_alloc(kScratchAlignment, rounded);
    s.bytes = s.data ? rounded : 0;
    const uint64_t total = impl.scratch_total += s.bytes;
    uint64_t peak = impl.scratch_peak;
    while (peak < total && !impl.scratch_peak.compare_exchange_weak(peak, total)) {
    }
    return s.data;
  }

  static void write_log(void* self, uint32_t level, const char* plugin_id,
                        const char* text) noexcept {
    try {
      of(self).log(level, one_line(plugin_id, 256), one_line(text, kMaxLogBytes));
    } catch (...) {  // out of memory: the line is lost, the run goes on
    }
  }

  static void complete(void* self, uint64_t ticket, kvasir_status status,
                       const kvasir_status* block_status, uint32_t n_blocks,
                       uint64_t bytes) noexcept {
    try {
      of(self).accept(ticket, status, block_status, n_blocks, bytes);
    } catch (...) {  // out of memory: wait() runs into its deadline and says so
    }
  }

  void accept(uint64_t ticket, kvasir_status status, const kvasir_status* block_status,
              uint32_t n_blocks, uint64_t bytes) {
    Completion completion{ticket, status, {}, bytes};
    if (block_status && n_blocks <= kMaxReportedBlocks) {
      completion.block_status.assign(block_status, block_status + n_blocks);
    }
    const char* defect =
        block_status && n_blocks > kMaxReportedBlocks ? "too many blocks" : nullptr;
    {
      const std::lock_guard lock(mutex);
      const auto it = reports.find(ticket);
      if (it == reports.end()) {
        defect = "a ticket that is unknown, or was reported before";
      } else if (it->second.is_done) {
        defect = "the same ticket twice";
      } else if (!defect) {
        it->second = {true, std::move(completion)};
      }
    }
    if (!defect) return arrived.notify_all();
    const Breadcrumb& crumb = breadcrumb();
    log(KVASIR_LOG_ERROR, crumb.plugin ? crumb.plugin : "storage",
        "defect of the plugin: completion reports " + std::string(defect) + " (ticket " +
            std::to_string(ticket) + "); ignored");
  }

  // Caller holds the mutex.
  bool take(uint64_t ticket, Completion* out) {
    const auto it = reports.find(ticket);
    if (it == reports.end() || !it->second.is_done) return false;
    if (out) *out = std::move(it->second.completion);
    reports.erase(it);
    return true;
  }

  ThreadPool& pool;
  Log sink;
  std::mutex log_mutex;
  std::vector<Scratch> scratch;  // by worker; the last one is for who does his loops himself
  std::atomic<uint64_t> scratch_total{0}, scratch_peak{0};
  std::mutex mutex;
  std::condition_variable arrived;
  std::unordered_map<uint64_t, Report> reports;
  uint64_t last_ticket = 0;
  std::unique_ptr<PluginChecks> checks;
  kvasir_host host{};
  kvasir_thread_pool thread_pool{};
  kvasir_scratch scratch_table{};
  kvasir_log log_table{};
  kvasir_completion completion_table{};
};

HostServices::HostServices(ThreadPool& pool, Log log)
    : impl_(std::make_unique<Impl>(pool, std::move(log))) {}
HostServices::~HostServices() = default;

const kvasir_host* HostServices::host() const { return &impl_->host; }

void HostServices::log(uint32_t level, const std::string& plugin, const std::string& text) const {
  impl_->log(level, plugin, text);
}

uint64_t HostServices::new_ticket() {
  const std::lock_guard lock(impl_->mutex);
  const uint64_t ticket = ++impl_->last_ticket;
  impl_->reports.emplace(ticket, Report{});
  return ticket;
}

void HostServices::discard(uint64_t ticket) {
  const std::lock_guard lock(impl_->mutex);
  impl_->reports.erase(ticket);
}

bool HostServices::wait(uint64_t ticket, std::chrono::milliseconds timeout, Completion* out) {
  std::unique_lock lock(impl_->mutex);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto settled = [&] {
    const auto it = impl_->reports.find(ticket);
    return it == impl_->reports.end() || it->second.is_done;
  };
  impl_->arrived.wait_until(lock, deadline, settled);
  return impl_->take(ticket, out);
}

bool HostServices::poll(uint64_t ticket, Completion* out) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->take(ticket, out);
}

uint64_t HostServices::scratch_bytes() const { return impl_->scratch_peak; }

void HostServices::check_plugins(const std::string& reference) {
  impl_->checks = std::make_unique<PluginChecks>();
  impl_->checks->reference = reference;
}

PluginChecks* HostServices::checks() const { return impl_->checks.get(); }

}  // namespace kvasir
