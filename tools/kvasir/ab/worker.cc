// See worker.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/worker.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/platform/standard_output.h"
#include "core/plugin/watchdog.h"
#include "tools/kvasir/cli/crash_report.h"
#include "tools/kvasir/cli/exit_code.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

// Memory that both processes see. Text is read when its writer is gone.
struct Board {
  std::atomic<uint64_t> beats{0};
  std::atomic<bool> takes_long{false}, is_interrupted{false}, is_done{false};
  std::atomic<int> code{0};
  std::array<char, 256> arm{};     // "": several
  std::array<char, 512> call{};    // a plugin call that has run for long
  std::array<char, 1024> crash{};  // of the crash report
};

template <size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  std::snprintf(to.data(), n, "%s", text.c_str());
}

Board* new_board() {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorKind::kResource, "no memory that a child could share");
  return new (memory) Board;
}

enum class Ending { kExit, kSignal, kHang, kInterrupted };
struct Ended {
  Ending how = Ending::kExit;
  int code = 0;  // of exit, or the signal
};

constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::seconds kInterruptPatience{5};

void wait_for_state(pid_t child, int* status) {
  while (waitpid(child, status, 0) < 0 && errno == EINTR) {
  }
}

// Waits for the child and watches its beats.
class Watch {
 public:
  Watch(Board& board, pid_t child, std::chrono::seconds patience)
      : board_(board),
        child_(child),
        patience_(patience),
        process_(static_cast<int>(syscall(SYS_pidfd_open, child, 0))) {}
  ~Watch() {
    if (process_ >= 0) close(process_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Ended wait() {
    for (int status = 0;;) {
      pollfd ready{process_, POLLIN, 0};
      poll(&ready, process_ >= 0 ? 1 : 0, static_cast<int>(kLook.count()));
      if (waitpid(child_, &status, WNOHANG) == child_)
        return WIFEXITED(status) ? Ended{Ending::kExit, WEXITSTATUS(status)}
                                 : Ended{Ending::kSignal, WTERMSIG(status)};
      if (const auto ending = lost_patience()) {
        kill(child_, SIGKILL);
        wait_for_state(child_, &status);
        return {*ending, 0};
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Ending> lost_patience() {
    const auto now = Clock::now();
    // Time in which this process was stopped, too, is not the strategy's.
    silent_ += std::min<Clock::duration>(now - looked_, 10 * kLook);
    looked_ = now;
    if (is_interrupted() && !board_.is_interrupted.exchange(true)) interrupted_ = now;
    if (board_.is_interrupted && now - interrupted_ > kInterruptPatience)
      return Ending::kInterrupted;
    const uint64_t beats = board_.beats;
    if (beats != beats_ || board_.takes_long) {
      beats_ = beats;
      silent_ = {};
    }
    return silent_ > patience_ ? std::optional(Ending::kHang) : std::nullopt;
  }

  Board& board_;
  pid_t child_;
  std::chrono::seconds patience_;
  int process_;
  uint64_t beats_ = 0;
  Clock::duration silent_{};  // since the last beat
  Clock::time_point looked_ = Clock::now(), interrupted_{};
};

// What stands in the report of the arm.
std::string reason_of(const Board& board, const Ended& ended, std::chrono::seconds patience) {
  if (board.crash[0]) return std::string("ended its process: ") + board.crash.data();
  if (ended.how == Ending::kHang)
    return (board.call[0] ? board.call.data() : std::string("a step")) +
           format(" did not return within %lld s (--patience)",
                  static_cast<long long>(patience.count()));
  if (ended.how == Ending::kSignal) return format("ended its process with signal %d", ended.code);
  return format("ended its process with code %d", ended.code);
}

}  // namespace

struct Worker::Impl {
  Board* board = nullptr;
  std::map<std::string, std::string> ended_by;
  bool one_at_a_time = false;
  std::optional<Watchdog> watchdog;  // of the worker: it has a thread

  // In the worker.
  void begin() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_crashes_to(board->crash.data(), board->crash.size());
    watchdog.emplace([b = board](const RunningCall& call, std::chrono::milliseconds) {
      const Breadcrumb& in = call.crumb;
      put(b->call, std::string(in.plugin) + ": " + in.function +
                       (in.layer == Breadcrumb::kNoLayer ? "" : format(", layer %u", in.layer)));
    });
  }

  // Why the worker ended is written down. Throws where no further one would get on.
  void learn(const Ended& ended, std::chrono::seconds patience) {
    const std::string arm = board->arm.data(), reason = reason_of(*board, ended, patience);
    if (arm == "dense" || ended_by.count(arm) ||
        (arm.empty() && (board->takes_long || n_without_cause == kMostWithoutCause)))
      throw Error(ErrorKind::kInternal,
                  (arm.empty() ? "the work" : arm) + (" cannot go on: it " + reason));
    one_at_a_time = true;
    if (arm.empty()) {
      report_progress("a strategy " + reason + "; each works alone now, to see which one");
      ++n_without_cause;
    } else {
      ended_by[arm] = reason;
      report_progress(arm + " failed and is left out from here on: " + reason);
    }
    board->~Board();
    new (board) Board;
  }

  static constexpr uint32_t kMostWithoutCause = 5;
  uint32_t n_without_cause = 0;  // endings of workers in which several arms were at work
};

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;

Worker Worker::start(std::chrono::seconds patience) {
  auto impl = std::make_unique<Impl>();
  impl->board = new_board();
  const pid_t self = getpid();
  for (;;) {
    std::fflush(standard_output());
    const pid_t child = fork();
    if (child < 0)
      throw Error(ErrorKind::kResource,
                  std::string("no process for the strategies: ") + std::strerror(errno));
    if (child == 0) {
      impl->begin();
      if (getppid() != self) _exit(130);  // it ended before prctl() asked for the signal
      return Worker(std::move(impl));
    }
    const Ended ended = Watch(*impl->board, child, patience).wait();
    if (impl->board->is_done) throw ExitWith(impl->board->code);
    // Code 0 without done() is a plugin's own exit.
    if (ended.how == Ending::kExit && ended.code != 0 && !impl->board->crash[0])
      throw ExitWith(ended.code);
    if (ended.how == Ending::kSignal && ended.code == SIGPIPE && !impl->board->arm[0]) {
      std::signal(SIGPIPE, SIG_DFL);  // nobody reads the report: end as quietly as others do
      raise(SIGPIPE);
    }
    if (ended.how == Ending::kInterrupted || is_interrupted()) throw Interrupted("interrupted");
    impl->learn(ended, patience);
  }
}

const std::map<std::string, std::string>& Worker::ended_by() const { return impl_->ended_by; }
bool Worker::wants_one_at_a_time() const { return impl_->one_at_a_time; }

void Worker::works_on(const std::string& arm) {
  put(impl_->board->arm, arm);
  beat();
}

void Worker::beat() {
  impl_->board->call[0] = '\0';
  ++impl_->board->beats;
}

void Worker::may_take_long(bool does) {
  beat();
  impl_->board->takes_long = does;
}

void Worker::stop_if_interrupted() const {
  if (is_interrupted() || impl_->board->is_interrupted) throw Interrupted("interrupted");
}

void Worker::done(int code) {
  impl_->board->code = code;
  impl_->board->is_done = true;
}

}  // namespace kvasir::tool
