// Writes a NumPy file row by row: float32, C order, two dimensions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace kvasir::tool {

// The file appears under its name only when finish() was reached. Errors: kvasir::Error.
class NpyWriter {
 public:
  NpyWriter(const std::string& path, uint64_t n_rows, uint64_t n_columns);
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;
  void write(std::span<const float> values);
  void finish();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, partial_;
  std::FILE* file_ = nullptr;
};

}  // namespace kvasir::tool
