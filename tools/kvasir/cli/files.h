// Files that a command reads and writes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace kvasir::tool {

// All bytes of the file. `what` names the flag in Error(kInput).
std::string read_file(const std::string& path, const std::string& what);

// Where a command writes: a file, or standard output. It is no error when the reader of
// standard output closes the pipe early.
class Output {
 public:
  explicit Output(const std::string& path);  // "-": stdout. Error(kInput) naming it
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // False when nobody reads any more.
  bool write(const void* data, size_t bytes);
  bool write(const std::string& text) { return write(text.data(), text.size()); }
  bool flush();
  bool is_stdout() const { return file_ == stdout; }

 private:
  bool failed() const;

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace kvasir::tool
