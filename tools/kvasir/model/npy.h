// Writes a NumPy file row by row: float32, C order, two dimensions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/platform/output_file.h"

namespace kvasir::tool {

// The file appears under its name only when finish() was reached. Errors: kvasir::Error.
class NpyWriter {
 public:
  NpyWriter(const std::string& path, uint64_t n_rows, uint64_t n_columns);
  void write(std::span<const float> values) { file_.write(values.data(), values.size_bytes()); }
  void finish() { file_.finish(); }

 private:
  OutputFile file_;
};

}  // namespace kvasir::tool
