// What a fuzzer is besides LLVMFuzzerTestOneInput.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvasir::fuzz {

struct Seed {
  std::string name;  // of its file
  std::string bytes;
};

// Well-formed inputs, one for each feature: where a new corpus begins.
std::vector<Seed> seeds();

}  // namespace kvasir::fuzz
