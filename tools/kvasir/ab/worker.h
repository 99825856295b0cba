// A process of its own for the work in which plugins run: a plugin that crashes or hangs there ends
// that process and not the command.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

namespace kvasir::tool {

// What the worker sees of the process that waits for it, and tells it.
class Worker {
 public:
  // Runs what follows the call in a process of its own, and returns there only. The calling process
  // waits, and throws ExitWith(the worker's code). When a worker ends by a crash, or goes on for
  // `patience` without beat(), the next one begins at this call again. Error(kInternal) when that
  // leads nowhere. Must be called before the process has other threads.
  static Worker start(std::chrono::seconds patience);
  ~Worker();
  Worker(Worker&&) noexcept;

  // Arms that ended a worker before this one, and how. They must not be run again.
  const std::map<std::string, std::string>& ended_by() const;
  // The worker before ended while several arms were at work: let each work alone, and say so
  // (works_on), until it is known which one does it.
  bool wants_one_at_a_time() const;

  // From here on the code of one arm runs, or ("") of several. What happens now is its doing.
  void works_on(const std::string& arm);
  void beat();  // a step is done
  // Work that may take any time, without code of plugins: loading weights.
  void may_take_long(bool does);
  // Throws Interrupted once Ctrl-C reached the command.
  void stop_if_interrupted() const;
  // All that the command does is done, with this exit code: a crash from here on changes nothing.
  void done(int code);

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::tool
