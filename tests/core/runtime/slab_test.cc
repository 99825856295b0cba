// Slabs: records of a fork stay its own, what was cut reads as new, open records go with their
// page.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/slab.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "core/platform/thread_pool.h"
#include "tests/support/memory_node.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kHeads = 2, kPage = 4, kBlock = 4;

struct Slab {
  RecordLayout wish{.record_bytes = 8, .open_bytes = 4};
  SlabLayout layout{wish, kHeads, kBlock, kPage};
  SlabPages pages;

  // As types.h says where a record lies.
  static std::byte* at(const std::vector<SlabPage>& of, uint64_t bytes, uint32_t head,
                       uint32_t block) {
    if (block / kPage >= of.size() || !of[block / kPage]) return nullptr;
    return of[block / kPage].get() + (head * kPage + block % kPage) * bytes;
  }
  void fill(uint32_t begin, uint32_t end, int value) {
    layout.make_writable(pages, begin, end);
    for (uint32_t block = begin; block < end; ++block)
      for (uint32_t head = 0; head < kHeads; ++head) {
        std::memset(at(pages.pages, 8, head, block), value, 8);
        std::memset(at(pages.open_pages, 4, head, block), value, 4);
      }
  }
  // -1: no record; else the value that fills it, or 1000 when it is mixed.
  static int value(const std::byte* record, uint64_t bytes) {
    if (!record) return -1;
    const bool same =
        std::all_of(record, record + bytes, [&](std::byte b) { return b == record[0]; });
    return same ? static_cast<int>(record[0]) : 1000;
  }
  int closed(uint32_t head, uint32_t block) const {
    return value(at(pages.pages, 8, head, block), 8);
  }
  int open(uint32_t head, uint32_t block) const {
    return value(at(pages.open_pages, 4, head, block), 4);
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/slab");

TEST_CASE("records begin as zeros, pages appear when they are written") {
  Slab slab;
  CHECK(slab.closed(0, 0) == -1);
  slab.layout.make_writable(slab.pages, 5, 6);
  CHECK(slab.closed(1, 0) == -1);
  for (uint32_t block = 4; block < 8; ++block) CHECK(slab.closed(1, block) == 0);
}

TEST_CASE("a copy shares pages until one of the two writes") {
  Slab a;
  a.fill(0, 10, 7);
  Slab b;
  b.pages = a.pages;
  b.fill(9, 10, 3);
  CHECK(a.closed(1, 9) == 7);
  CHECK(a.open(1, 9) == 7);
  CHECK(b.closed(1, 9) == 3);
  CHECK(b.closed(0, 8) == 7);  // of the same page, copied
  CHECK(b.pages.pages[0] == a.pages.pages[0]);
  CHECK(b.pages.pages[2] != a.pages.pages[2]);
  a.fill(0, 1, 5);
  CHECK(b.closed(0, 0) == 7);
}

TEST_CASE("what is cut reads as new, for this holder only") {
  for (const bool inside_block : {false, true})
    for (const uint32_t keep : {0u, 1u, 4u, 6u, 8u}) {
      CAPTURE(inside_block);
      CAPTURE(keep);
      Slab slab;
      slab.fill(0, 10, 7);
      const Slab other = slab;
      if (keep == 0 && inside_block) continue;
      slab.layout.truncate(slab.pages, keep * kBlock - (inside_block ? 3 : 0));
      slab.layout.make_writable(slab.pages, 0, 10);
      for (uint32_t block = 0; block < 10; ++block)
        for (uint32_t head = 0; head < kHeads; ++head) {
          const int want = block + (inside_block ? 1 : 0) < keep ? 7 : 0;
          CHECK(slab.closed(head, block) == want);
          CHECK(slab.open(head, block) == want);
          CHECK(other.closed(head, block) == 7);
        }
    }
}

TEST_CASE("a record per token keeps what it says of the tokens that stay") {
  const RecordLayout wish{.flags = KVASIR_LAYOUT_PER_TOKEN, .record_bytes = 8};  // 2 per token
  const SlabLayout layout{wish, kHeads, kBlock, kPage};
  SlabPages pages;
  layout.make_writable(pages, 0, 3);
  for (uint32_t block = 0; block < 3; ++block)
    for (uint32_t head = 0; head < kHeads; ++head)
      std::memset(Slab::at(pages.pages, 8, head, block), 7, 8);
  layout.truncate(pages, 2 * kBlock + 1);
  for (uint32_t head = 0; head < kHeads; ++head) {
    CHECK(Slab::value(Slab::at(pages.pages, 8, head, 1), 8) == 7);
    CHECK(Slab::value(Slab::at(pages.pages, 8, head, 2), 2) == 7);
    CHECK(Slab::value(Slab::at(pages.pages, 8, head, 2) + 2, 6) == 0);
  }
}

TEST_CASE("what is kept of a page lies behind all records, and goes when a block is cut") {
  const RecordLayout wish{.record_bytes = 8, .page_bytes = 64};
  const SlabLayout layout{wish, kHeads, kBlock, kPage};
  CHECK(layout.part_offset() % 64 == 0);
  CHECK(layout.part_offset() >= kHeads * kPage * 8);
  CHECK(layout.part_offset() < kHeads * kPage * 8 + 64);
  CHECK(layout.page_bytes() == layout.part_offset() + kHeads * 64);
  SlabPages pages;
  layout.make_writable(pages, 0, 2 * kPage);
  for (uint32_t page = 0; page < 2; ++page)
    std::memset(pages.pages[page].get(), 7, layout.page_bytes());
  SlabPages fork = pages;
  layout.truncate(fork, (kPage + 2) * kBlock);  // two blocks of the second page stay
  CHECK(Slab::value(fork.pages[0].get(), layout.page_bytes()) == 7);
  CHECK(Slab::value(pages.pages[1].get(), layout.page_bytes()) == 7);
  for (uint32_t head = 0; head < kHeads; ++head) {
    const std::byte* records = fork.pages[1].get() + head * kPage * 8;
    CHECK(Slab::value(records, 16) == 7);
    CHECK(Slab::value(records + 16, kPage * 8 - 16) == 0);
    CHECK(Slab::value(fork.pages[1].get() + layout.part_offset() + head * 64, 64) == 0);
  }
  layout.truncate(fork, kPage * kBlock);  // the whole second page
  CHECK(fork.pages.size() == 1);
  CHECK(Slab::value(fork.pages[0].get(), layout.page_bytes()) == 7);
}

TEST_CASE("open records go when all blocks of their page are final") {
  Slab slab;
  slab.fill(0, 10, 7);
  slab.layout.free_open(slab.pages, 7);
  CHECK(slab.open(0, 3) == -1);
  CHECK(slab.open(0, 4) == 7);
  CHECK(slab.closed(0, 3) == 7);
  slab.layout.free_open(slab.pages, 100);
  CHECK(slab.open(0, 9) == -1);
}

TEST_CASE("the view is laid out as types.h says") {
  Slab a, b;
  a.fill(0, 6, 1);
  b.fill(4, 5, 2);
  SlabLayout::Buffers buffers;
  const kvasir_slab* view = a.layout.view({&a.pages, &b.pages}, buffers);
  REQUIRE(view != nullptr);
  CHECK(view->page_blocks == kPage);
  CHECK(view->record_bytes == 8);
  CHECK(view->open_bytes == 4);
  CHECK(view->seq_pages[0] == 0);
  CHECK(view->seq_pages[1] == 2);
  CHECK(view->seq_pages[2] == 4);
  CHECK(view->pages[2] == nullptr);  // b has nothing in its first page
  CHECK(view->pages[3] == b.pages.pages[1].get());
  CHECK(view->open_pages[1] == a.pages.open_pages[1].get());
  CHECK(SlabLayout().view({&a.pages}, buffers) == nullptr);
}

TEST_CASE("pages that are spread over memory nodes begin as zeros, and forks share them") {
  ThreadPool pool(Topology::synthetic("numa:2 core:2 pu:1"));
  Slab slab;
  slab.layout = SlabLayout(slab.wish, kHeads, kBlock, kPage, nullptr, &pool);
  slab.fill(0, 3, 7);
  for (uint32_t head = 0; head < kHeads; ++head) {
    CHECK(slab.closed(head, 2) == 7);
    CHECK(slab.closed(head, 3) == 0);
    CHECK(slab.open(head, 3) == 0);
  }
  Slab fork;
  fork.layout = slab.layout;
  fork.pages = slab.pages;
  CHECK(fork.pages.pages[0].use_count() == 2);
  fork.fill(1, 2, 9);
  CHECK(slab.closed(1, 1) == 7);
  CHECK(fork.closed(1, 1) == 9);
  CHECK(fork.closed(1, 0) == 7);
}

TEST_CASE("the records of a kv head lie on the memory node of the workers that score it") {
  if (!can_bind(1)) {
    MESSAGE("SKIPPED: memory cannot be placed on a second node here");
    return;
  }
  const Topology topology = Topology::detect();
  ThreadPool pool(topology);
  constexpr uint32_t kManyHeads = 8;
  const RecordLayout wish{.record_bytes = 4096, .open_bytes = 0};
  const SlabLayout layout(wish, kManyHeads, kBlock, kPage, nullptr, &pool);
  SlabPages pages;
  layout.make_writable(pages, 0, 1);
  pool.parallel_for(kManyHeads, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    for (uint64_t head = begin; head < end; ++head)
      CHECK(node_at(pages.pages[0].get() + head * kPage * 4096 + 100) == pool.os_node_of(worker));
  });
}
