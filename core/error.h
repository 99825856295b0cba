// The one exception type of the core: a sentence for the user (what, where, what to do) and the
// class of the failure, from which a tool's main() picks the exit code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace kvasir {

enum class ErrorKind {
  kInput,     // the user's input is at fault (file, option, config, plugin): exit code 2
  kResource,  // the machine lacks something (memory, device): exit code 2
  kInternal,  // a defect of ours or of a plugin at run time: exit code 1
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The common case: bad input.
inline Error input_error(const std::string& message) { return {ErrorKind::kInput, message}; }

}  // namespace kvasir
