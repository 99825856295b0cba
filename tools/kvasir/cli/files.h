// Files that a command reads and writes, standard output among them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "core/platform/output_file.h"

namespace kvasir::tool {

// More than any prompt; it ends what reads an endless file.
constexpr uint64_t kMostTextBytes = uint64_t{1} << 30;

// All bytes of the file, at most so many. `what` names the flag in Error(kInput).
std::string read_file(const std::string& path, const std::string& what,
                      uint64_t most_bytes = kMostTextBytes);

uint64_t file_bytes(const std::string& path);  // 0 where it is no regular file

// A file of -o is overwritten with --force only.
void check_overwrite(const std::string& path, bool force);

// At the start of the program: descriptors 0 to 2 that are closed get one that fails when it is
// read or written, so that no file opened later takes their numbers.
void open_standard_streams();
// At the end of the program, whatever was printed by then. Error(kResource) when not all of it
// reached standard output.
void flush_standard_output();
// Error(kResource) with the system's reason, errno.
[[noreturn]] void fail_standard_output();

// Where a command writes: a file, or standard output. It is no error when the reader of
// standard output closes the pipe early.
class Output {
 public:
  enum class As {
    kWhole,  // the file appears when it is finished
    kLines,  // the file grows by what each write() adds; a full disk leaves only whole writes
  };
  Output(const std::string& path, As as);  // "-": stdout. Errors name path and reason
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // False when nobody reads any more.
  bool write(const void* data, size_t bytes);
  bool write(const std::string& text) { return write(text.data(), text.size()); }
  bool finish();
  bool is_stdout() const { return path_ == "-"; }

 private:
  bool write_line(const void* data, size_t bytes);
  [[noreturn]] void fail_lines(int error) const;

  std::string path_;
  std::optional<OutputFile> whole_;
  int lines_ = -1;          // descriptor
  uint64_t n_written_ = 0;  // bytes of whole writes
};

// Where kvasir keeps what it need not find out again: $XDG_CACHE_HOME/kvasir, else ~/.cache/kvasir.
// Empty: the user has no such folder. It may not exist yet.
std::filesystem::path cache_folder();

}  // namespace kvasir::tool
