// Which plugin function this thread is in, for crash handlers: plain thread-local memory, readable
// from a signal handler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

struct Breadcrumb {
  static constexpr uint32_t kNoLayer = 0xffffffffu;
  const char* plugin = nullptr;    // id, of kept_text(); null when no plugin code runs
  const char* path = nullptr;      // of its file; likewise
  const char* function = nullptr;  // static
  uint32_t layer = kNoLayer;
};

// An equal text that lives as long as the process: who watches may read a crumb's when the call has
// ended and its plugin is gone. Takes memory once for each text.
const char* kept_text(const std::string& text);

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
// later: it is the same call still.
struct RunningCall {
  uint32_t thread = 0;
  uint64_t number = 0;
  Breadcrumb crumb;
};
std::vector<RunningCall> running_calls();

}  // namespace kvasir
