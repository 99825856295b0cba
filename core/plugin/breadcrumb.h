// Which plugin function this thread is in, for crash handlers: plain thread-local memory, readable
// from a signal handler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

struct Breadcrumb {
  static constexpr uint32_t kNoLayer = 0xffffffffu;
  const char* plugin = nullptr;    // id, null when no plugin code runs; lives as long as the plugin
  const char* path = nullptr;      // of its file; likewise
  const char* function = nullptr;  // static
  uint32_t layer = kNoLayer;
};

// Of the calling thread. Workers of the pool carry the crumb of the call that uses them.
const Breadcrumb& breadcrumb();

// Sets the crumb for a scope and restores the one before.
class BreadcrumbScope {
 public:
  explicit BreadcrumbScope(const Breadcrumb& crumb);
  ~BreadcrumbScope();
  BreadcrumbScope(const BreadcrumbScope&) = delete;
  BreadcrumbScope& operator=(const BreadcrumbScope&) = delete;

 private:
  Breadcrumb before_;
};

// The plugin calls under way on all threads, for who watches over them. The same thread and number
// later: it is the same call still. A crumb's strings live as long as the call.
struct RunningCall {
  uint32_t thread = 0;
  uint64_t number = 0;
  Breadcrumb crumb;
};
std::vector<RunningCall> running_calls();

}  // namespace kvasir
