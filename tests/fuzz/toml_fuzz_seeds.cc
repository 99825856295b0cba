// Writes the first corpus of toml_fuzz into the folder given: one strategy per feature.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr const char* kSeeds[] = {
    "cache.window_tokens=64\n[cache]\nblock_size = 16\nsink_tokens = 8\nwindow_mode = \"prompt\"\n"
    "window_flush_tokens = 32\ndense_layers = [0, 1]\nhead_select_mode = 'shared'\nbypass = "
    "false\n",
    "selector.plugin=./a/b.so\n[selector]\nplugin = \"block_topk\"\nbudget_tokens = 4096\n"
    "ratio = 0.5\nmemory = \"8GiB\"\n[representative]\nplugin = 'minmax'\n[storage]\n"
    "plugin = 'dram'\ndtype = 'f16'\n[attention]\nplugin = 'cpu'\npath = '/lib/cpu.so'\n",
    "selector.1.k=[1, 2]\n[[selector]]\nplugin = 'a'\n[[selector]]\nplugin = 'b'\nk = [3]\n",
    "cache.n_sink='x'\ncache = { dense_layer_num = 2, gqa_reduce = \"mean\" }\n",
    "storage.a=1979-05-27\ninclude = ['a.toml']\n[storage.b]\nc = \"\"\"\nd\"\"\"\n",
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: toml_fuzz_seeds <corpus>\n");
    return 2;
  }
  std::filesystem::create_directories(argv[1]);
  int n = 0;
  for (const char* seed : kSeeds) {
    std::ofstream(std::filesystem::path(argv[1]) / ("seed" + std::to_string(n++))) << seed;
  }
  return 0;
}
