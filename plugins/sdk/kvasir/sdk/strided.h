// An array whose elements lie further apart than our struct is long: the other side may have been
// built with more fields.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvasir::sdk {

template <class T>
class Strided {
 public:
  Strided(T* first, uint64_t n, uint64_t stride_bytes)
      : first_(reinterpret_cast<Byte*>(first)), n_(n), stride_(stride_bytes) {}

  uint64_t size() const { return n_; }
  T& operator[](uint64_t i) const { return *reinterpret_cast<T*>(first_ + i * stride_); }

  class Iterator {
   public:
    Iterator(const Strided* array, uint64_t i) : array_(array), i_(i) {}
    T& operator*() const { return (*array_)[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return i_ != other.i_; }

   private:
    const Strided* array_;
    uint64_t i_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, n_}; }

 private:
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  Byte* first_;
  uint64_t n_;
  uint64_t stride_;
};

}  // namespace kvasir::sdk
