// The message of an expected error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/error.h"

namespace kvasir::test {

// The text of the Error(kInput) that fn throws, or empty.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kInput ? e.what() : std::string();
  }
  return {};
}

}  // namespace kvasir::test
