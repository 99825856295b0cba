// Strict UTF-8 decoding of one character, for text that may hold any bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::utf8 {

// Bytes of the well-formed character at the start of `text` (Unicode 15, table 3-7: no overlong
// forms, no surrogates, nothing above U+10FFFF); 0 when the first byte does not start one.
inline size_t char_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xC2 && first <= 0xDF   ? 2
                   : first >= 0xE0 && first <= 0xEF ? 3
                   : first >= 0xF0 && first <= 0xF4 ? 4
                                                    : 0;
  if (n == 0 || text.size() < n) return 0;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return n;
}

// Length of the well-formed beginning of `text`.
inline size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t n = char_bytes(text.substr(at));
    if (n == 0) break;
    at += n;
  }
  return at;
}

// Code point of a well-formed character of 1 to 4 bytes.
inline uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(character[i]));
  };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

// One- or two-byte character: all that the byte alphabet of byte-level BPE needs (below U+0800).
inline std::string encode_short(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace kvasir::utf8
