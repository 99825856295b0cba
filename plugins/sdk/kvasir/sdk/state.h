// kvasir.state/1: what a plugin keeps per sequence outside the slab, as bytes.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/ext/draft/state.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvasir::sdk {

// Bytes of a saved sequence. The reader trusts none of them: it never reads past the end, and a
// count must be what the caller expects.
class StateWriter {
 public:
  template <class T>
  void put(const T& value) {
    put(std::span<const T>(&value, 1));
  }
  template <class T>
  void put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + values.size_bytes());
  }
  // A list with its length before it.
  template <class T>
  void put_list(const std::vector<T>& values) {
    put(static_cast<uint64_t>(values.size()));
    put(std::span<const T>(values));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class StateReader {
 public:
  StateReader(const void* bytes, uint64_t n)
      : bytes_(static_cast<const std::byte*>(bytes)), rest_(bytes ? n : 0) {}

  template <class T>
  T take() {
    T value;
    take(std::span<T>(&value, 1));
    return value;
  }
  template <class T>
  void take(std::span<T> out) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (out.size_bytes() > rest_) damaged("it ends too early");
    if (!out.empty()) std::memcpy(out.data(), bytes_, out.size_bytes());
    bytes_ += out.size_bytes();
    rest_ -= out.size_bytes();
  }
  template <class T>
  std::vector<T> take_list(uint64_t max_n, const char* what) {
    const auto n = take<uint64_t>();
    if (n > max_n || n > rest_ / sizeof(T)) {
      damaged(std::string(what) + " has " + std::to_string(n) + " entries");
    }
    std::vector<T> out(n);
    take(std::span<T>(out));
    return out;
  }
  bool take_flag() {
    const auto byte = take<uint8_t>();
    if (byte > 1) damaged("a flag is neither 0 nor 1");
    return byte == 1;
  }
  // Strictly ascending and below `end`: tokens, blocks.
  std::vector<uint32_t> take_ascending(uint32_t end, const char* what) {
    auto out = take_list<uint32_t>(end, what);
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= end || (i > 0 && out[i] <= out[i - 1])) {
        damaged(std::string(what) + " are out of order or range");
      }
    }
    return out;
  }
  // The next key of a map that is being filled in order: behind its last, and below `end`.
  template <class Map>
  uint32_t take_key(const Map& map, uint32_t end, const char* what) {
    const auto key = take<uint32_t>();
    if (key >= end || (!map.empty() && key <= map.rbegin()->first)) {
      damaged(std::string(what) + " are out of order or range");
    }
    return key;
  }
  // n finite numbers, all >= 0 with is_sum.
  template <class T>
  std::vector<T> take_numbers(uint64_t n, bool is_sum, const char* what) {
    auto out = take_list<T>(n, what);
    const auto good = [&](T x) { return std::isfinite(x) && (x >= 0 || !is_sum); };
    if (out.size() != n || !std::all_of(out.begin(), out.end(), good)) {
      damaged(std::string(what) + " are too few, or no numbers that can be");
    }
    return out;
  }
  template <class T>
  void expect(const T& value, const char* what) {
    if (take<T>() != value) damaged(std::string(what) + " differs");
  }
  void finish() const {
    if (rest_ != 0) damaged(std::to_string(rest_) + " bytes are left over");
  }
  [[noreturn]] static void damaged(const std::string& why) {
    fail_invalid("the saved sequence does not fit this run, or is damaged: " + why +
                 "; process its prompt again");
  }

 private:
  const std::byte* bytes_;
  uint64_t rest_;
};

// kvasir.state/1 of a plugin class with
//   void save(uint64_t seq, StateWriter& out);
//   void load(uint64_t seq, StateReader& in);
template <class T>
const kvasir_state* state_extension() {
  static constexpr kvasir_state kTable = {
      sizeof(kvasir_state), 0,
      [](void* self, uint64_t seq, int32_t (*write)(void*, const void*, uint64_t) KVASIR_NOEXCEPT,
         void* user, kvasir_err* err) noexcept {
        return guard(err, [&] {
          StateWriter out;
          detail::as<T>(self).save(seq, out);
          if (write(user, out.bytes().data(), out.bytes().size()) != 0) {
            throw Error(KVASIR_ERR_CANCELLED, "the host ended the save");
          }
        });
      },
      [](void* self, uint64_t seq, const void* bytes, uint64_t n, kvasir_err* err) noexcept {
        return guard(err, [&] {
          StateReader in(bytes, n);
          detail::as<T>(self).load(seq, in);
          in.finish();
        });
      }};
  return &kTable;
}

// The whole of such a class's get_extension(), when it has no other.
template <class T>
const void* state_if_asked(const char* id) {
  return std::string_view(id) == KVASIR_EXT_STATE ? state_extension<T>() : nullptr;
}

}  // namespace kvasir::sdk
