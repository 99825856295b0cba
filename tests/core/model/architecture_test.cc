// The records of the model families.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/architecture.h"

#include <doctest/doctest.h>

#include "core/model/tokenizer/pretokenizer.h"
#include "tests/support/error_of.h"

using namespace kvasir;

TEST_SUITE_BEGIN("core/model/architecture");

TEST_CASE("a family is found by its name, and has what its models are known for") {
  CHECK(architecture_names() ==
        std::vector<std::string>{"llama", "qwen2", "qwen3", "gemma2", "gemma3"});
  for (const std::string& name : architecture_names()) CHECK(architecture(name).name == name);
  CHECK(architecture("llama").pairing == RopePairing::kInterleaved);
  CHECK(architecture("qwen2").pairing == RopePairing::kHalfSplit);
  CHECK(architecture("qwen2").qkv_bias);
  CHECK(architecture("qwen3").qk_norm);
}

TEST_CASE("a sliding window is that of all layers but every n-th") {
  CHECK(sliding_windows(9, 7, 3) == std::vector<uint32_t>{9, 9, 0, 9, 9, 0, 9});
  CHECK(sliding_windows(9, 3, 1) == std::vector<uint32_t>{0, 0, 0});
  CHECK(sliding_windows(9, 2, kAllLayersSlide) == std::vector<uint32_t>{9, 9});
}

TEST_CASE("the tokenizer of a made-up model is one that we can run") {
  for (const std::string& name : architecture_names()) {
    const Pretokenizer pretokenizer(architecture(name).pretokenizer, name);
    CHECK_FALSE(pretokenizer.split("some text").empty());
  }
}

TEST_CASE("an unknown family is refused with the list of those there are") {
  for (const std::string name : {"mamba", "", "Llama"}) {
    CHECK(test::error_of([&] { architecture(name, "a.gguf: "); }) ==
          "a.gguf: architecture '" + name +
              "' is not supported; supported are llama, qwen2, qwen3, gemma2 and gemma3");
  }
}
