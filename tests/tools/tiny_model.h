// A model with random weights, and the JSON that a command prints about it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/process.h"

namespace kvasir::test {

inline nlohmann::json json_of(const std::vector<std::string>& arguments,
                              const std::vector<std::string>& environment = {}) {
  const Finished done = run_kvasir(arguments, environment);
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  return nlohmann::json::parse(
      done.out);  // all of it: a second document or a stray line would throw
}

struct TinyModel {
  TempDir folder;
  std::string path = folder.path("tiny.gguf");
  TinyModel() {
    REQUIRE(
        run_kvasir({"model", "random", "tiny-llama-test", "--context", "4096", "-o", path}).code ==
        0);
  }
};

}  // namespace kvasir::test
