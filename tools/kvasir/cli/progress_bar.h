// The progress bar of long work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvasir::tool {

// "prefill [#####.....]  512/1024  123/s  4 s left" on stderr, only when it is a terminal, at
// most ten times a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, bool enabled = true);
  ~ProgressBar();
  void update(uint64_t done, uint64_t total);

 private:
  std::string label_;
  bool enabled_, drawn_ = false;
  std::chrono::steady_clock::time_point begin_, last_;
};

}  // namespace kvasir::tool
