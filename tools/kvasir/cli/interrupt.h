// Ctrl-C, the same in every command: the first asks it to end, the second ends the process. The
// exit code is 130.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace kvasir::tool {

// What a command that Ctrl-C has ended throws; main() turns it into the exit code.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// From now on, unless the process was started with SIGINT ignored (nohup, a script's `&`).
void catch_interrupts();

bool is_interrupted();
// For a loop between two pieces of its work.
void stop_if_interrupted();
// chat goes on behind an interrupted answer: the next Ctrl-C is the first again.
void forget_interrupt();

}  // namespace kvasir::tool
