// See blocked_plugins.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/blocked_plugins.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/platform/output_file.h"
#include "tools/kvasir/cli/files.h"

namespace kvasir::tool {
namespace {

namespace fs = std::filesystem;

struct Crash {
  std::string state, cause, function, id, path;
};

// Nothing for a line that is not one of ours.
bool read_crash(const std::string& line, Crash& out) {
  std::istringstream words(line);
  out = {};
  for (int i = 0; i < 7; ++i) {
    std::string number;
    if (!(words >> number)) return false;
    out.state += number + " ";
  }
  if (!(words >> out.cause >> out.function >> out.id)) return false;
  std::getline(words >> std::ws, out.path);
  std::replace(out.function.begin(), out.function.end(), '+', ' ');
  return !out.path.empty();
}

// As many as can be read; is_whole: whether these are all.
std::vector<std::string> lines_of(const std::string& path, bool* is_whole = nullptr) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (is_whole) *is_whole = !in.bad();
  return lines;
}

}  // namespace

std::string file_state(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return "";
  std::ostringstream state;
  state << s.st_dev << ' ' << s.st_ino << ' ' << s.st_size << ' ' << s.st_mtim.tv_sec << ' '
        << s.st_mtim.tv_nsec << ' ' << s.st_ctim.tv_sec << ' ' << s.st_ctim.tv_nsec << ' ';
  return state.str();
}

std::string blocked_plugins_file() {
  const fs::path folder = cache_folder();
  return folder.empty() ? "" : (folder / "blocked-plugins").string();
}

std::string why_blocked(const std::string& path) {
  const std::string list = blocked_plugins_file();
  if (list.empty()) return "";
  std::string reason;
  for (const std::string& line : lines_of(list)) {
    Crash crash;
    if (!read_crash(line, crash) || crash.path != path || crash.state != file_state(path)) continue;
    reason = "ended kvasir with " + crash.cause + " in " + crash.function +
             "; rebuild it, or allow it again: kvasir plugin unblock " + crash.id;
  }
  return reason;
}

std::vector<std::string> unblock(const std::string& what) {
  std::vector<std::string> paths;
  const std::string list = blocked_plugins_file();
  if (list.empty()) return paths;
  std::error_code error;
  const std::string canonical = fs::weakly_canonical(what, error).string();
  std::string kept;
  bool is_whole = false;
  const std::vector<std::string> lines = lines_of(list, &is_whole);
  if (!is_whole)  // what was not read would be lost
    throw input_error(list + ": cannot be read; check its disk, or delete it to allow all plugins");
  for (const std::string& line : lines) {
    Crash crash;
    const bool is_meant = read_crash(line, crash) && (crash.id == what || crash.path == canonical);
    if (!is_meant)
      kept += line + "\n";
    else if (std::find(paths.begin(), paths.end(), crash.path) == paths.end())
      paths.push_back(crash.path);
  }
  if (paths.empty()) return paths;
  OutputFile out(list, {.flag = "", .mode = 0600});
  out.write(kept.data(), kept.size());
  out.finish();
  return paths;
}

}  // namespace kvasir::tool
