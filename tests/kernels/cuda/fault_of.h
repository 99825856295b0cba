// What the checker of the emulation says of a launch, for tests of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/cuda/emulation/fault.h"

namespace kvasir::test {

struct Verdict {
  bool is_clean = true;
  cuda::emulation::FaultKind kind{};
  std::string text;  // empty where nothing was found
};
template <class Run>
Verdict verdict(const Run& run) {
  try {
    run();
    return {};
  } catch (const cuda::emulation::Fault& fault) {
    return {false, fault.kind(), fault.what()};
  }
}
// A fault of this kind, whose text names what the author needs to find it.
inline void check_fault(const Verdict& v, cuda::emulation::FaultKind kind,
                        const std::vector<std::string>& words) {
  REQUIRE_FALSE(v.is_clean);
  CAPTURE(v.text);
  CHECK(v.kind == kind);
  for (const std::string& word : words) CHECK(v.text.find(word) != std::string::npos);
}

}  // namespace kvasir::test
