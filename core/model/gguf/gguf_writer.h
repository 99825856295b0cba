// Writes GGUF files: made-up models, and copies of a model with other weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/model/gguf/ggml_type.h"
#include "core/model/gguf/gguf.h"

namespace kvasir {

// Writes a GGUF v3. Metadata first, then add_tensor() for all, then write() streams the data of
// each tensor in order through `fill`, so a model larger than memory can be written. The file
// appears under its name only when complete (OutputFile).
class GgufWriter {
 public:
  using Value =
      std::variant<bool, uint32_t, int32_t, uint64_t, float, std::string, std::vector<std::string>,
                   std::vector<float>, std::vector<int32_t>, GgufRaw>;
  void set(const std::string& key, Value value);
  void add_tensor(const std::string& name, GgmlType type, std::vector<uint64_t> shape);
  using Fill = std::function<void(size_t tensor_index, std::span<std::byte> bytes)>;
  void write(const std::string& path, const Fill& fill) const;
  // The same, a tensor in as many pieces as the caller likes: `produce` gives its bytes in order to
  // `sink`. Nothing of a tensor is kept. Error(kInternal) when they are not as many as it has.
  using Sink = std::function<void(std::span<const std::byte> bytes)>;
  using Produce = std::function<void(size_t tensor_index, const Sink& sink)>;
  void stream(const std::string& path, const Produce& produce) const;

 private:
  struct Entry {
    std::string name;
    GgmlType type;
    std::vector<uint64_t> shape;
    uint64_t n_bytes() const;
  };
  std::string head() const;  // all that comes before the data
  std::vector<std::pair<std::string, Value>> metadata_;
  std::vector<Entry> tensors_;
};

}  // namespace kvasir
