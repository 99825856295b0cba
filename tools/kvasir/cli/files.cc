// See files.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/files.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"

namespace kvasir::tool {

std::string read_file(const std::string& path, const std::string& what) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw input_error(what + " " + path + ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw input_error(what + " " + path + ": cannot be opened; check the path");
  return {std::istreambuf_iterator<char>(in), {}};
}

Output::Output(const std::string& path) : path_(path) {
  if (path == "-") {
    std::signal(SIGPIPE, SIG_IGN);
    file_ = stdout;
    return;
  }
  file_ = std::fopen(path.c_str(), "wb");
  if (!file_) throw input_error("-o " + path + ": " + std::strerror(errno));
}

Output::~Output() {
  if (file_ != stdout) std::fclose(file_);
}

bool Output::write(const void* data, size_t bytes) {
  return std::fwrite(data, 1, bytes, file_) == bytes || failed();
}

bool Output::flush() { return std::fflush(file_) == 0 || failed(); }

bool Output::failed() const {
  if (errno == EPIPE) return false;
  throw Error(ErrorKind::kResource, "-o " + path_ + ": " + std::strerror(errno));
}

}  // namespace kvasir::tool
