// Files of safetensors: the length of a JSON text in 8 bytes, little-endian, that text, and the
// bytes of the tensors, whose offsets count from there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

class SafetensorsWriter {
 public:
  // metadata: of the file, under a key.
  SafetensorsWriter(const std::string& key, const std::string& metadata);
  // Behind those before it. data: `bytes` of them, which must outlive write().
  void add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
           const void* data, uint64_t bytes);
  // The file of -o appears when it is whole. Errors name it.
  void write(const std::string& path) const;

 private:
  struct Data {
    const void* data;
    uint64_t bytes;
  };
  Json root_;
  std::vector<Data> tensors_;
  uint64_t end_ = 0;
};

inline constexpr const char* kSafetensorsMetadata = "__metadata__";

}  // namespace kvasir::tool
