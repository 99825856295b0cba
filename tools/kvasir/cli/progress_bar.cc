// See progress_bar.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

ProgressBar::ProgressBar(std::string label, uint64_t done_before)
    : label_(std::move(label)),
      done_before_(done_before),
      is_terminal_(isatty(STDERR_FILENO)),
      begin_(Clock::now()),
      last_(is_terminal_ ? begin_ - std::chrono::seconds(1) : begin_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::update(uint64_t done, uint64_t total, const std::string& note) {
  constexpr std::chrono::milliseconds kBetweenBars(100), kBetweenLines(10'000);
  if (total == 0) return;
  const auto now = Clock::now();
  const bool is_due = now - last_ >= (is_terminal_ ? kBetweenBars : kBetweenLines);
  if (!is_due && !(is_terminal_ && done == total)) return;
  last_ = now;
  draw(done, total, note);
}

void ProgressBar::draw(uint64_t done, uint64_t total, const std::string& note) {
  constexpr uint64_t kWidth = 30;
  const double seconds = std::chrono::duration<double>(last_ - begin_).count();
  const double rate = seconds > 0 ? static_cast<double>(done - done_before_) / seconds : 0.0;
  const std::string figures =
      format("%llu/%llu  %.*f/s  %.0f s left", static_cast<unsigned long long>(done),
             static_cast<unsigned long long>(total), rate < 10 ? 1 : 0, rate,
             rate > 0 ? static_cast<double>(total - done) / rate : 0.0) +
      (note.empty() ? "" : "; " + note);
  if (!is_terminal_) return report_progress(label_ + " " + figures);
  const auto filled = static_cast<size_t>(kWidth * done / total);
  const std::string line =
      label_ + " [" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] " + figures;
  winsize terminal{};  // what does not fit would begin a line that is never cleared
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &terminal) == 0 && terminal.ws_col > 1;
  std::fprintf(stderr, "\r\033[K%s",
               line.substr(0, known ? terminal.ws_col - size_t{1} : line.npos).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void report_progress(const std::string& line) {
  std::fprintf(stderr, "kvasir: %s\n", line.c_str());
}

}  // namespace kvasir::tool
