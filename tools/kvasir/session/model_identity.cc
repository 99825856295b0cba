// See model_identity.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/model_identity.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/platform/output_file.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

namespace fs = std::filesystem;

// Changes with every write to a part: nobody can set the time of a change (ctime) back.
std::string state_of(const GgufFile& file) {
  std::string state;
  for (const std::string& part : file.part_paths()) {
    struct stat s {};
    if (::stat(part.c_str(), &s) != 0) return "";
    for (const long long number :
         {static_cast<long long>(s.st_dev), static_cast<long long>(s.st_ino),
          static_cast<long long>(s.st_size), static_cast<long long>(s.st_mtim.tv_sec),
          static_cast<long long>(s.st_mtim.tv_nsec), static_cast<long long>(s.st_ctim.tv_sec),
          static_cast<long long>(s.st_ctim.tv_nsec)})
      state += std::to_string(number) + " ";
  }
  return state;
}

// The file holds the state and the hash: "STATE: HASH".
std::optional<uint64_t> kept_hash(const fs::path& path, const std::string& state) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line) || !line.starts_with(state + ": ")) return std::nullopt;
  const char* at = line.data() + state.size() + 2;
  uint64_t hash = 0;
  const auto read = std::from_chars(at, line.data() + line.size(), hash, 16);
  if (read.ec != std::errc() || read.ptr != line.data() + line.size()) return std::nullopt;
  return hash;
}

void keep_hash(const fs::path& path, const std::string& state, uint64_t hash) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const std::string line = state + format(": %016llx\n", static_cast<unsigned long long>(hash));
  try {
    OutputFile out(path.string(), {.flag = "", .mode = 0600});
    out.write(line.data(), line.size());
    out.finish();
  } catch (const Error&) {  // no space, no rights: the next run computes it again
  }
}

}  // namespace

uint64_t model_hash(const GgufFile& file) {
  const fs::path folder = cache_folder();  // empty: nothing is kept
  const std::string state = state_of(file);
  if (folder.empty() || state.empty()) return file.content_hash();
  const fs::path path =
      folder / "model-hashes" /
      format("%016llx", static_cast<unsigned long long>(XXH3_64bits(state.data(), state.size())));
  if (const auto kept = kept_hash(path, state)) return *kept;
  const uint64_t hash = file.content_hash();
  // A file that was written to meanwhile is not what was read.
  if (state_of(file) == state) keep_hash(path, state, hash);
  return hash;
}

}  // namespace kvasir::tool
