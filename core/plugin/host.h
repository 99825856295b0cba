// What the core offers plugins: kvasir_host and its extensions over the pool, logger and completion
// queue of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/platform/thread_pool.h"

namespace kvasir {

struct PluginChecks;

// While it lives, plugins that this thread calls do their loops themselves and have scratch memory
// of their own: another thread's call has the pool. One thread at a time.
class BesidePool {
 public:
  BesidePool();
  ~BesidePool();
  BesidePool(const BesidePool&) = delete;
  BesidePool& operator=(const BesidePool&) = delete;
};

struct Completion {
  uint64_t ticket;
  kvasir_status status;
  std::vector<kvasir_status> block_status;  // empty: all equal status
  uint64_t bytes;
};

// Must outlive every instance created with it. Log lines go to `log` (level KVASIR_LOG_*, plugin
// id, text), one at a time; the core itself never prints.
class HostServices {
 public:
  using Log =
      std::function<void(uint32_t level, const std::string& plugin, const std::string& text)>;
  HostServices(ThreadPool& pool, Log log);
  ~HostServices();
  HostServices(const HostServices&) = delete;

  const kvasir_host* host() const;
  void log(uint32_t level, const std::string& plugin, const std::string& text) const;

  uint64_t new_ticket();
  // Forgets a ticket that will not be reported: prefetch() failed or accepted nothing.
  void discard(uint64_t ticket);
  // Removes and returns the report of `ticket`, waiting up to `timeout`; nullopt-like: false.
  bool wait(uint64_t ticket, std::chrono::milliseconds timeout, Completion* out);
  bool poll(uint64_t ticket, Completion* out);
  uint64_t scratch_bytes() const;  // handed out at most, over all workers
  // The validate mode, for instances that are created from now on (check/plugin_checks.h).
  // reference: the id of the backend to compare with, or "".
  void check_plugins(const std::string& reference);
  PluginChecks* checks() const;  // null: off

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
