// libFuzzer over strategy texts and overrides: any bytes give a strategy or an Error, and every
// strategy that is accepted can be explained. The first line of the input is one override.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/config/strategy.h"
#include "core/error.h"
#include "tests/fuzz/seeds.h"

// One strategy for each feature.
std::vector<kvasir::fuzz::Seed> kvasir::fuzz::seeds() {
  return {
      {"cache",
       "cache.window_tokens=64\n[cache]\nblock_size = 16\nsink_tokens = 8\n"
       "window_mode = \"prompt\"\nwindow_flush_tokens = 32\ndense_layers = [0, 1]\n"
       "head_select_mode = 'shared'\nbypass = false\n"},
      {"plugins",
       "selector.plugin=./a/b.so\n[selector]\nplugin = \"block_topk\"\nbudget_tokens = 4096\n"
       "ratio = 0.5\nmemory = \"8GiB\"\n[representative]\nplugin = 'minmax'\n[storage]\n"
       "plugin = 'dram'\ndtype = 'f16'\n[attention]\nplugin = 'cpu'\npath = '/lib/cpu.so'\n"},
      {"chain",
       "selector.1.k=[1, 2]\n[[selector]]\nplugin = 'a'\n[[selector]]\nplugin = 'b'\nk = [3]\n"},
      {"names", "cache.n_sink='x'\ncache = { dense_layer_num = 2, gqa_reduce = \"mean\" }\n"},
      {"include", "storage.a=1979-05-27\ninclude = ['a.toml']\n[storage.b]\nc = \"\"\"\nd\"\"\"\n"},
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const std::string first = text.substr(0, line);
  const size_t equals = first.find('=');
  std::vector<kvasir::Override> overrides;
  if (equals != std::string::npos) {
    overrides.push_back({first.substr(0, equals), first.substr(equals + 1), {}});
  }
  try {
    const std::string toml = line == std::string::npos ? std::string() : text.substr(line + 1);
    (void)kvasir::explain(kvasir::parse_strategy(toml, "fuzz.toml", overrides, {}));
  } catch (const kvasir::Error&) {
  }
  return 0;
}
