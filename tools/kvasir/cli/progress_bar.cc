// See progress_bar.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/progress_bar.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace kvasir::tool {

ProgressBar::ProgressBar(std::string label, bool enabled)
    : label_(std::move(label)),
      enabled_(enabled && isatty(STDERR_FILENO)),
      begin_(std::chrono::steady_clock::now()),
      last_(begin_ - std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::update(uint64_t done, uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || total == 0 || (now - last_ < std::chrono::milliseconds(100) && done != total))
    return;
  last_ = now;
  constexpr uint64_t kWidth = 30;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto filled = static_cast<size_t>(kWidth * done / total);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
  std::fprintf(stderr, "\r\033[K%s [%s%s] %llu/%llu  %.0f/s  %.0f s left", label_.c_str(),
               std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(),
               static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), rate,
               rate > 0 ? static_cast<double>(total - done) / rate : 0.0);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace kvasir::tool
