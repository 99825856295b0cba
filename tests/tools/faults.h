// Runs kvasir with system calls that fail; fault_injector.cc says which there are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/process.h"

namespace kvasir::test {

struct Fault {
  std::string kind, calls;
  std::string at = "1+";  // the number of a call, "+": and all that follow
};

struct Faulted : Finished {
  std::vector<std::string> hits;  // the calls that failed, "write /folder/file"
  bool says(const std::string& text) const { return err.find(text) != std::string::npos; }
};

// Calls on files below `folder` fail. The list of hits lies elsewhere.
inline Faulted run_with(const Fault& fault, const std::string& folder,
                        const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment = {}) {
  const TempDir log;
  std::vector<std::string> variables = {
      "LD_PRELOAD=" KVASIR_FAULT_INJECTOR,
      "FAULT_KIND=" + fault.kind,
      "FAULT_CALLS=" + fault.calls,
      "FAULT_AT=" + fault.at,
      "FAULT_FOLDER=" + std::filesystem::canonical(folder).string(),
      "FAULT_LOG=" + log.path("hits")};
  variables.insert(variables.end(), environment.begin(), environment.end());
  Faulted out{run_kvasir(arguments, variables), {}};
  std::istringstream lines(read_bytes(log.path("hits")));
  for (std::string line; std::getline(lines, line);) out.hits.push_back(line);
  return out;
}

// Lets the first such call fail, in the next run the second, and so on, until a run ends before it:
// then each has failed once, or `most` of them. Returns how many.
template <class Check>
int fail_each(const std::string& kind, const std::string& calls, const std::string& folder,
              const std::vector<std::string>& arguments, const Check& check,
              const std::vector<std::string>& environment = {}, int most = 1000) {
  for (int n = 1; n <= most; ++n) {
    const Faulted done = run_with({kind, calls, std::to_string(n)}, folder, arguments, environment);
    if (done.hits.empty()) return n - 1;
    CAPTURE(kind);
    CAPTURE(done.hits[0]);
    CAPTURE(done.err);
    check(done);
  }
  return most;
}

// A run over kvasir.tiered, whose file lies in `folder`. The plugin's thread writes and reads while
// the others compute: the model is large enough, and leaves it a processor, so that there is time.
struct TieredRun {
  TempDir model, folder;
  std::vector<std::string> command;
  TieredRun() {
    const std::string path = model.path("model.gguf");
    REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--layers", "8", "--d-model", "256",
                        "--d-ff", "1024", "-o", path})
                .code == 0);
    std::string words;
    for (int i = 0; i < 40; ++i) words.append(" ").append(std::to_string(i));
    command = {"run",
               "-m",
               path,
               "-f",
               model.write("prompt", words),
               "-n",
               "16",
               "--temp",
               "0",
               "--ignore-eos",
               "-t",
               "1",
               "--set",
               "cache.block_size=16",
               "--set",
               "storage.plugin=tiered",
               "--set",
               "storage.cached_blocks=1",
               "--set",
               "storage.io=thread",  // calls of the C library, which can be made to fail
               "--set",
               "storage.direct=false",
               "--set",
               "storage.folder=" + folder.root().string()};
  }
};

// False, and says so, where no library can be put before others (a sanitizer's must be the first).
inline bool can_inject_faults() {
  static const bool can = [] {
    const TempDir folder;
    folder.write("strategy.toml", "");
    const Faulted tried = run_with({"eio", "read"}, folder.root().string(),
                                   {"config", "check", folder.path("strategy.toml")});
    return tried.code == 2 && !tried.hits.empty();
  }();
  if (!can) MESSAGE("SKIPPED: no library can be put before the others here");
  return can;
}

}  // namespace kvasir::test
