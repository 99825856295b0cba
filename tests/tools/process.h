// Runs the kvasir binary of this build and returns what it prints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace kvasir::test {

struct Finished {
  int code = -1;  // exit status; 128 + signal when killed
  std::string out, err;
};
// Standard input is empty, XDG_CACHE_HOME a folder of the run. `environment`: "NAME=value", added
// to ours without KVASIR_* variables.
Finished run_kvasir(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {});

// A script of sh, in which `kvasir` is this build's: for what only a shell says.
Finished run_shell(const std::string& script);

// A kvasir that goes on while the test does: with standard input open and empty.
class RunningKvasir {
 public:
  explicit RunningKvasir(const std::vector<std::string>& arguments);
  ~RunningKvasir();  // kills it if it still runs
  RunningKvasir(const RunningKvasir&) = delete;
  RunningKvasir& operator=(const RunningKvasir&) = delete;

  bool catches_interrupts() const;  // by now
  std::string out() const;          // so far
  std::string err() const;
  void interrupt();  // SIGINT
  Finished finish();

 private:
  TempDir folder_;
  pid_t child_ = -1;
  int input_ = -1;
};

// False after a minute.
bool wait_until(const std::function<bool()>& holds);

std::string kvasir_binary();

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kvasir::test
