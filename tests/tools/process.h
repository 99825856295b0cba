// Runs the kvasir binary of this build and catches what it says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvasir::test {

struct Finished {
  int code = -1;  // exit status; 128 + signal when killed
  std::string out, err;
};
// Standard input is empty. `environment`: "NAME=value", added to ours without KVASIR_* variables.
Finished run_kvasir(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {});

std::string kvasir_binary();

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const;
  std::vector<std::string> list() const;

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::string& path);

}  // namespace kvasir::test
