// Numbers, lists and texts as bytes, and back from bytes that nobody vouches for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace kvasir {

// Takes bytes in the order they are made; may throw.
using ByteSink = std::function<void(std::span<const std::byte>)>;

// Hands on what it is given in pieces, so that no more than one of them is in memory.
class ByteWriter {
 public:
  explicit ByteWriter(ByteSink sink) : sink_(std::move(sink)) {
    if (!hash_) throw std::bad_alloc();
    XXH3_64bits_reset(hash_.get());
  }

  void bytes(const void* data, size_t n) {
    const auto* from = static_cast<const std::byte*>(data);
    piece_.insert(piece_.end(), from, from + n);
    if (piece_.size() >= kPieceBytes) flush();
  }
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(value));
  }
  template <class T>
  void list(const std::vector<T>& values) {
    number<uint64_t>(values.size());
    bytes(values.data(), values.size() * sizeof(T));
  }
  void text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes(value.data(), value.size());
  }
  void flags(const std::vector<bool>& values) {
    std::vector<uint8_t> packed((values.size() + 7) / 8);
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i]) packed[i / 8] = static_cast<uint8_t>(packed[i / 8] | 1u << i % 8);
    number<uint64_t>(values.size());
    bytes(packed.data(), packed.size());
  }
  // Appends the XXH3 of all before it.
  void finish() {
    flush();
    number(XXH3_64bits_digest(hash_.get()));
    flush();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  void flush() {
    XXH3_64bits_update(hash_.get(), piece_.data(), piece_.size());
    sink_(piece_);
    piece_.clear();
  }

  ByteSink sink_;
  std::vector<std::byte> piece_;
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash_{XXH3_createState(),
                                                                 &XXH3_freeState};
};

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string name)
      : left_(bytes), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw input_error(name_ + ": " + why + "; prefill the prompt anew");
  }
  std::span<const std::byte> bytes(uint64_t n) {
    if (n > left_.size()) refuse("the saved sequence ends too early");
    const auto out = left_.first(n);
    left_ = left_.subspan(n);
    return out;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  // At most `most` elements: what the sequence can need.
  uint64_t count(uint64_t most, const char* what) {
    const auto n = number<uint64_t>();
    if (n > most)
      refuse("it says " + std::to_string(n) + " " + what + ", there is room for " +
             std::to_string(most));
    return n;
  }
  template <class T>
  std::vector<T> list(uint64_t most, const char* what) {
    std::vector<T> out(count(std::min<uint64_t>(most, left_.size() / sizeof(T) + 1), what));
    const auto from = bytes(out.size() * sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), from.data(), from.size());
    return out;
  }
  std::string text() {
    const auto from = bytes(count(left_.size(), "bytes of text"));
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  std::vector<bool> flags(uint64_t most) {
    std::vector<bool> out(count(most, "tokens"));
    const auto packed = bytes((out.size() + 7) / 8);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<unsigned>(packed[i / 8]) >> i % 8 & 1;
    return out;
  }
  // Positions or units of a list: ascending, below `end`.
  std::vector<uint32_t> ascending(uint64_t end, const char* what) {
    auto out = list<uint32_t>(end, what);
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i] >= end || (i > 0 && out[i] <= out[i - 1]))
        refuse(std::string(what) + " are out of order or range");
    return out;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
  std::string name_;
};

}  // namespace kvasir
