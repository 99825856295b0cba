// The table of the families.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/architecture.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .pairing = RopePairing::kInterleaved,
     .qkv_bias = false,
     .qk_norm = false,
     .pretokenizer = "llama-bpe",
     .add_bos = true},
    {.name = "qwen2",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = true,
     .qk_norm = false,
     .pretokenizer = "qwen2",
     .add_bos = false},
    {.name = "qwen3",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = false,
     .qk_norm = true,
     .pretokenizer = "qwen2",
     .add_bos = false},
};

// "llama, qwen2 and qwen3"
std::string supported_names() {
  std::string text;
  for (const Architecture& each : kArchitectures) {
    const bool last = &each == std::prev(std::end(kArchitectures));
    if (!text.empty()) text += last ? " and " : ", ";
    text += each.name;
  }
  return text;
}

}  // namespace

const Architecture& architecture(std::string_view name, const std::string& where) {
  const auto* const found =
      std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                   [&](const Architecture& each) { return each.name == name; });
  if (found != std::end(kArchitectures)) return *found;
  throw input_error(where + "architecture '" + std::string(name.substr(0, 64)) +
                    "' is not supported; supported are " + supported_names());
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Architecture& each : kArchitectures) names.emplace_back(each.name);
  return names;
}

}  // namespace kvasir
