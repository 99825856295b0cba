// What a plugin keeps, seen from outside.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <malloc.h>

#include <cstddef>

namespace kvasir::test {

// Bytes on the heap; 0 where a sanitizer keeps its own.
inline size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// False, and says so, where heap_bytes() says nothing.
inline bool counts_heap_bytes() {
  if (heap_bytes() != 0) return true;
  MESSAGE("SKIPPED: the allocator does not count its bytes here");
  return false;
}

}  // namespace kvasir::test
