// GGUF v2/v3 files: metadata and tensor directory, memory-mapped, every size checked before use.
// Format: github.com/ggml-org/ggml docs/gguf.md. Untrusted input: any defect is an Error(kInput)
// naming file, what is wrong, and what to do; nothing is allocated from a size that the file's own
// length does not back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/gguf/ggml_type.h"

namespace kvasir {

struct GgufTensor {
  std::string name;
  GgmlType type;
  std::vector<uint64_t> shape;  // fastest dimension first, as in the file: {in, out} for a matrix
  const std::byte* data;        // inside the mapping
  uint64_t n_elements;
  uint64_t n_bytes;
};

// One metadata value in the file's own encoding, to be copied as it is: the value type's number,
// and what follows it (for an array: element type, count, elements).
struct GgufRaw {
  uint32_t type;
  std::string bytes;
};

class GgufFile {
 public:
  // Opens path; when the file says it is part of a split (split.count > 1, "-00001-of-00003.gguf")
  // opens all the others beside it and presents one directory of tensors.
  static GgufFile open(const std::string& path);
  // The same parser over memory that outlives the object: for fuzzing.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& label);
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& path() const;
  uint32_t version() const;
  uint64_t file_bytes() const;  // all parts
  std::vector<std::string> part_paths() const;
  const std::vector<GgufTensor>& tensors() const;
  // Looking a tensor up means to use it: Error when its type is not supported, naming type, tensor
  // and file. tensors() lists these too.
  const GgufTensor* find_tensor(std::string_view name) const;  // null when absent
  const GgufTensor& tensor(std::string_view name) const;       // Error naming the tensor and file

  // Metadata. get<T> converts between integer widths when the value fits, else Error naming the key
  // and the type found. Arrays: get_array<T>. T: bool, uint32_t, int32_t, uint64_t, float,
  // std::string_view.
  bool has(std::string_view key) const;
  std::vector<std::string> keys() const;             // in file order
  std::string describe(std::string_view key) const;  // value as short text, for `model info`
  template <class T>
  std::optional<T> get(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    const auto v = get<T>(key);
    return v ? *v : fallback;
  }
  template <class T>
  T require(std::string_view key) const;      // Error when absent
  bool is_array(std::string_view key) const;  // false when absent
  template <class T>
  std::optional<std::vector<T>> get_array(std::string_view key) const;
  std::optional<GgufRaw> raw(std::string_view key) const;

  // Tells the kernel that these bytes of a tensor are not needed for now, so that mapped pages do
  // not count as resident beside a converted copy; reading them again is fine. Nothing for parse()d
  // memory.
  void release_pages(const std::byte* data, uint64_t n_bytes) const;

  // XXH3 of metadata, directory and all bytes of all tensors: identifies the model. Reads the file.
  uint64_t content_hash() const;

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
