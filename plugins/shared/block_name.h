// What a block is called: the part of a key that makes two keys mean the same block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/storage.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir::sdk {

struct BlockName {
  uint64_t hash[2];
  uint32_t layer;
  uint32_t block;
  uint32_t kv_head;  // or KVASIR_ALL_HEADS
  bool operator==(const BlockName&) const = default;
};

struct BlockNameHash {
  size_t operator()(const BlockName& name) const {
    constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
    uint64_t h = name.hash[0] ^ (name.hash[1] * kMultiplier);
    for (const uint64_t part :
         {uint64_t{name.layer}, uint64_t{name.block}, uint64_t{name.kv_head}}) {
      h = (h ^ (h >> 29) ^ part) * kMultiplier;
    }
    return h ^ (h >> 32);
  }
};

inline BlockName name_of(const kvasir_block_key& key) {
  return {{key.hash[0], key.hash[1]}, key.layer, key.block, key.kv_head};
}

// The block of all heads that a key of one head may be a slice of.
inline BlockName whole_of(const kvasir_block_key& key) {
  return {{key.hash[0], key.hash[1]}, key.layer, key.block, KVASIR_ALL_HEADS};
}

// How an error text of a storage about `key` begins.
inline std::string where(const char* storage, const char* function, const kvasir_block_key& key) {
  std::string text = std::string(storage) + ": " + function + ", layer " +
                     std::to_string(key.layer) + ", block " + std::to_string(key.block);
  if (key.kv_head != KVASIR_ALL_HEADS) text += ", kv head " + std::to_string(key.kv_head);
  return text + ": ";
}

}  // namespace kvasir::sdk
