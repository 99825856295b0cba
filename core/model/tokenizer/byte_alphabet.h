// The characters that stand for bytes in the vocabularies of byte-level BPE (encoder.py of
// openai/gpt-2).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace kvasir {

// The code point of each byte: printable Latin-1 stands for itself, the other bytes for U+0100 and
// on, in order (a space is U+0120).
inline std::array<uint32_t, 256> byte_alphabet() {
  std::array<uint32_t, 256> code;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    code[byte] = printable ? byte : next++;
  }
  return code;
}

}  // namespace kvasir
