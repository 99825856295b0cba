// A command that ends with an exit code of its own, without an error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace kvasir::tool {

// main() turns it into the exit code, once what was printed has reached standard output.
class ExitWith : public std::exception {
 public:
  explicit ExitWith(int code) : code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

}  // namespace kvasir::tool
