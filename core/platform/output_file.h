// A file that appears under its name whole or not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "core/error.h"

namespace kvasir {

// Whether writing to `path` would replace a file: a regular one, reached by its name or by links.
// False for devices, FIFOs, and the descriptors under /dev and /proc.
bool replaces_file(const std::string& path);

// `what` failed ("-o FILE: cannot be written"), with the system's reason and what to do.
// kResource when the disk is full.
Error write_error(const std::string& what, int error);

// Written beside its place under another name, and renamed once all bytes are there: whoever opens
// the name sees the old file or the whole new one. A symbolic link stays, what it names is
// replaced. What is no regular file (a device, a FIFO) is written to as it is.
class OutputFile {
 public:
  struct Options {
    std::string flag;    // what the user called the file, at the start of messages: "-o "
    mode_t mode = 0666;  // of a new file, before umask
  };
  // Errors of all functions: Error(kInput), kResource when the disk is full, naming flag and path.
  explicit OutputFile(const std::string& path) : OutputFile(path, Options()) {}
  OutputFile(const std::string& path, Options options);
  ~OutputFile();  // without finish(): removes what was written
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void finish();  // nothing may be written after it

 private:
  void sync();
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;  // as the user wrote it
  Options options_;
  std::string target_;   // what a link names
  std::string partial_;  // "" where the target itself is written to
  int fd_ = -1;
};

}  // namespace kvasir
