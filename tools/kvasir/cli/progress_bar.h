// How far long work has come, on stderr.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvasir::tool {

// On a terminal "prefill [#####.....] 512/1024  123/s  4 s left", drawn anew at most ten times a
// second and gone at the end. Elsewhere "kvasir: prefill 512/1024  123/s  4 s left", a line every
// ten seconds: shorter work leaves none.
class ProgressBar {
 public:
  // done_before: of what an earlier run has done, which says nothing of this one's speed.
  explicit ProgressBar(std::string label, uint64_t done_before = 0);
  ~ProgressBar();
  void update(uint64_t done, uint64_t total, const std::string& note = "");  // behind the figures

 private:
  using Clock = std::chrono::steady_clock;
  void draw(uint64_t done, uint64_t total, const std::string& note);

  std::string label_;
  uint64_t done_before_;
  bool is_terminal_, drawn_ = false;
  Clock::time_point begin_, last_;
};

// "kvasir: <line>": a part of the work is done.
void report_progress(const std::string& line);

}  // namespace kvasir::tool
