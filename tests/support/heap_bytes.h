// What a plugin keeps, seen from outside.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <malloc.h>

#include <cstddef>

namespace kvasir::test {

// Bytes on the heap; 0 where a sanitizer keeps its own.
inline size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace kvasir::test
