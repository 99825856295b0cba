// What a plugin shares with all of the process and must not change behind its host's back:
// descriptors it did not open, the environment, the working folder, signal handlers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvasir {

class ProcessState {
 public:
  ProcessState();  // as it is now
  // What a call changed that began with `before`: "it closed descriptor 5 (/path)", or "". `own`:
  // descriptors that the plugin opened in earlier calls, which are its own affair; those it opened
  // in this one are added.
  static std::string change(const ProcessState& before, const ProcessState& after,
                            std::set<int>& own);

 private:
  std::map<int, std::string> descriptors_;  // what each leads to, as /proc/self/fd says
  std::vector<std::string> environment_;    // sorted
  std::string folder_;
  std::vector<struct sigaction> handlers_;  // by signal
};

// Bytes that malloc() has given out, in this process.
uint64_t allocated_bytes();

}  // namespace kvasir
