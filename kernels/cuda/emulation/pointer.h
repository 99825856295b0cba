// The pointer of kernels on the host: knows its allocation, and each access is checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/emulation/memory.h"

namespace kvasir::cuda::emulation {

template <class T>
class Pointer {
 public:
  using Value = std::remove_const_t<T>;

  Pointer() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as a plain pointer would
  Pointer(std::nullptr_t) {}
  // An address of the device, or null. What lies in no allocation is told when it is touched.
  explicit Pointer(void* at) : at_(static_cast<T*>(at)), region_(at ? region_of(at) : nullptr) {}
  explicit Pointer(const void* at) requires std::is_const_v<T>
      : at_(static_cast<T*>(at)), region_(at ? region_of(at) : nullptr) {}
  Pointer(T* at, Region* region) : at_(at), region_(region) {}
  template <class U>
  requires(std::is_const_v<T>&& std::is_same_v<U, Value>)
      Pointer(const Pointer<U>& other)  // NOLINT(google-explicit-constructor)
      : at_(other.raw()), region_(other.region()) {}

  // One element: reads where it is converted, writes where it is assigned.
  class Element {
   public:
    explicit Element(const Pointer& at) : at_(at) {}
    operator Value() const { return at_.template read<Value>(); }                         // NOLINT
    void operator=(Value value) const { at_.write(value); }                               // NOLINT
    void operator=(const Element& other) const { at_.write(static_cast<Value>(other)); }  // NOLINT
    void operator+=(Value value) const { at_.write(at_.template read<Value>() + value); }
    Element(const Element&) = default;

   private:
    Pointer at_;
  };

  Element operator*() const { return Element(*this); }
  Element operator[](uint64_t i) const { return Element(*this + i); }
  Pointer operator+(int64_t n) const { return {at_ + n, region_}; }
  Pointer operator+(uint64_t n) const { return {at_ + n, region_}; }
  Pointer operator+(uint32_t n) const { return {at_ + n, region_}; }
  explicit operator bool() const { return at_ != nullptr; }

  T* raw() const { return at_; }
  Region* region() const { return region_; }

  // sizeof(V) bytes at once, aligned to their size as the device wants it.
  template <class V>
  V read() const {
    check(sizeof(V), alignof(V), Touch::kRead);
    V value;
    std::memcpy(&value, static_cast<const void*>(at_), sizeof value);
    return value;
  }
  template <class V>
  void write(const V& value) const {
    check(sizeof(V), alignof(V), Touch::kWrite);
    std::memcpy(static_cast<void*>(at_), &value, sizeof value);
  }
  void check(uint64_t bytes, uint64_t alignment, Touch touch) const {
    if (!region_) throw Fault(FaultKind::kBounds, "a pointer into no allocation is followed");
    region_->check(at_, bytes, alignment, touch);
  }

 private:
  T* at_ = nullptr;
  Region* region_ = nullptr;
};

}  // namespace kvasir::cuda::emulation
