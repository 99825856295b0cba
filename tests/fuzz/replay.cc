// Gives a fuzzer its seeds and the files of folders, one after the other: what any compiler can do
// with inputs that libFuzzer found. The last name printed is that of the input that crashed.
//   <name>_replay [FOLDER…]         seeds, then every file of the folders
//   <name>_replay --seeds FOLDER    writes the seeds as files
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/fuzz/seeds.h"
#include "tests/support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using kvasir::fuzz::Seed;

void write_seeds(const fs::path& folder) {
  fs::create_directories(folder);
  for (const Seed& seed : kvasir::fuzz::seeds())
    std::ofstream(folder / seed.name, std::ios::binary) << seed.bytes;
}

void run(const std::string& name, const std::string& bytes) {
  std::fprintf(stderr, "%s\n", name.c_str());
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

size_t replay(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) run(file.string(), kvasir::test::read_bytes(file.string()));
  return files.size();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string_view(argv[1]) == "--seeds") {
      write_seeds(argv[2]);
      return 0;
    }
    const auto seeds = kvasir::fuzz::seeds();
    for (const Seed& seed : seeds) run("seed " + seed.name, seed.bytes);
    size_t n_files = 0;
    for (int i = 1; i < argc; ++i) n_files += replay(argv[i]);
    std::printf("%zu seeds, %zu files\n", seeds.size(), n_files);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
