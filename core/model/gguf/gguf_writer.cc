// GgufWriter: metadata, tensor directory, then the data of one tensor after the other.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/gguf_writer.h"

#include <array>

#include "core/error.h"
#include "core/model/gguf/gguf_format.h"
#include "core/platform/output_file.h"

namespace kvasir {
namespace {

using gguf::ValueType;

// Collects the head of the file; all of it fits memory (the vocabulary is the largest part).
class HeadBuffer {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(uint64_t{value.size()});
    bytes_ += value;
  }
  void raw(std::string_view bytes) { bytes_ += bytes; }
  void type(ValueType value) { number(static_cast<uint32_t>(value)); }
  void pad_to(uint64_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

template <class T>
constexpr ValueType value_type() {
  if constexpr (std::is_same_v<T, bool>) return ValueType::kBool;
  if constexpr (std::is_same_v<T, uint32_t>) return ValueType::kU32;
  if constexpr (std::is_same_v<T, int32_t>) return ValueType::kI32;
  if constexpr (std::is_same_v<T, uint64_t>) return ValueType::kU64;
  if constexpr (std::is_same_v<T, float>) return ValueType::kF32;
  if constexpr (std::is_same_v<T, std::string>) return ValueType::kString;
}

template <class T>
void put(HeadBuffer& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    out.text(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    out.number(static_cast<uint8_t>(value));
  } else {
    out.number(value);
  }
}

template <class T>
void put_value(HeadBuffer& out, const T& value) {
  out.type(value_type<T>());
  put(out, value);
}

template <class T>
void put_value(HeadBuffer& out, const std::vector<T>& values) {
  out.type(ValueType::kArray);
  out.type(value_type<T>());
  out.number(uint64_t{values.size()});
  for (const T& value : values) put(out, value);
}

void put_value(HeadBuffer& out, const GgufRaw& value) {
  out.number(value.type);
  out.raw(value.bytes);
}

uint64_t padded(uint64_t n) {
  return (n + gguf::kDefaultAlignment - 1) / gguf::kDefaultAlignment * gguf::kDefaultAlignment;
}

}  // namespace

void GgufWriter::set(const std::string& key, Value value) {
  for (auto& [existing, old] : metadata_) {
    if (existing != key) continue;
    old = std::move(value);
    return;
  }
  metadata_.emplace_back(key, std::move(value));
}

void GgufWriter::add_tensor(const std::string& name, GgmlType type, std::vector<uint64_t> shape) {
  const bool sized = block_elements(type) > 0 && !shape.empty() && shape.size() <= 4 &&
                     shape[0] % block_elements(type) == 0;
  if (!sized)
    throw Error(ErrorKind::kInternal,
                "tensor " + gguf::in_quotes(name) + " cannot be written as " + kvasir::name(type) +
                    ": its first dimension must be a multiple of the type's block");
  tensors_.push_back({name, type, std::move(shape)});
}

uint64_t GgufWriter::Entry::n_bytes() const {
  uint64_t n = 1;
  for (const uint64_t dim : shape) n *= dim;
  return n / block_elements(type) * block_bytes(type);
}

std::string GgufWriter::head() const {
  HeadBuffer head;
  head.number(gguf::kMagic);
  head.number(uint32_t{3});
  head.number(uint64_t{tensors_.size()});
  head.number(uint64_t{metadata_.size()});
  for (const auto& [key, value] : metadata_) {
    head.text(key);
    std::visit([&](const auto& v) { put_value(head, v); }, value);
  }
  uint64_t offset = 0;
  for (const Entry& tensor : tensors_) {
    head.text(tensor.name);
    head.number(static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t dim : tensor.shape) head.number(dim);
    head.number(static_cast<uint32_t>(tensor.type));
    head.number(offset);
    offset += padded(tensor.n_bytes());
  }
  if (!tensors_.empty()) head.pad_to(gguf::kDefaultAlignment);
  return head.bytes();
}

void GgufWriter::stream(const std::string& path, const Produce& produce) const {
  OutputFile out(path);
  const std::string begin = head();
  out.write(begin.data(), begin.size());
  constexpr std::array<std::byte, gguf::kDefaultAlignment> kZeros{};
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t n = tensors_[i].n_bytes();
    uint64_t written = 0;
    produce(i, [&](std::span<const std::byte> bytes) {
      out.write(bytes.data(), bytes.size());
      written += bytes.size();
    });
    if (written != n)
      throw Error(ErrorKind::kInternal, "tensor " + gguf::in_quotes(tensors_[i].name) + " has " +
                                            std::to_string(n) + " bytes, " +
                                            std::to_string(written) + " were given");
    out.write(kZeros.data(), padded(n) - n);
  }
  out.finish();
}

void GgufWriter::write(const std::string& path, const Fill& fill) const {
  std::vector<std::byte> buffer;
  stream(path, [&](size_t i, const Sink& sink) {
    buffer.resize(tensors_[i].n_bytes());
    fill(i, buffer);
    sink(buffer);
  });
}

}  // namespace kvasir
