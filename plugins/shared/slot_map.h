// Values under 64-bit ids that are found in O(1) and never valid again once removed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace kvasir::sdk {

// id = generation << 32 | index + 1: never 0, and any 64-bit number may be asked for.
template <class T>
class SlotMap {
 public:
  uint64_t add(T value) {
    if (free_.empty()) {
      slots_.push_back({});
      free_.reserve(slots_.capacity());  // remove() must not allocate
      free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].value = std::move(value);
    slots_[index].live = true;
    return uint64_t{slots_[index].generation} << 32 | (index + 1);
  }

  // Null when no live value has that id. Valid until the next add().
  T* find(uint64_t id) {
    const uint64_t index = (id & 0xffffffffu) - 1;  // 0 wraps round and is out of range
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.live && slot.generation == id >> 32 ? &slot.value : nullptr;
  }

  void remove(uint64_t id) noexcept {
    const auto index = static_cast<uint32_t>((id & 0xffffffffu) - 1);
    slots_[index].value = T{};  // what it holds goes now, not when the slot is used again
    slots_[index].live = false;
    ++slots_[index].generation;
    free_.push_back(index);
  }

  static constexpr uint64_t bytes_per_value() { return sizeof(Slot) + sizeof(uint32_t); }

 private:
  struct Slot {
    T value{};
    uint32_t generation = 0;
    bool live = false;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace kvasir::sdk
