// Lists and tables that stay on the device are placed as plain loops place them.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_lists.h"

#include <doctest/doctest.h>

#include "kernels/cuda/attention_call.h"
#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

KvBlock block_of(uint64_t i) {
  const auto n = static_cast<uint32_t>(i);
  return {1000 + i, 2000 + i, 3000 + i, n, n + 1, n + 2, n % 2};
}
bool same(const KvBlock& a, const KvBlock& b) {
  return a.k == b.k && a.v == b.v && a.pos == b.pos && a.first_pos == b.first_pos &&
         a.n_tokens == b.n_tokens && a.format == b.format && a.is_one_head == b.is_one_head;
}

}  // namespace

TEST_SUITE("kernels/cuda/device_lists") {
  TEST_CASE("what names a block is placed, what names none becomes the empty one") {
    constexpr uint32_t kUntouched = 0xdeadbeefu;
    std::vector<uint32_t> index, want(1, kUntouched);
    std::vector<ChosenList> lists;
    std::vector<std::pair<uint64_t, uint64_t>> places;  // in index, in items
    for (const uint32_t n : {0u, 1u, 2u, 255u, 256u, 257u, 700u}) {
      const uint32_t n_blocks = n / 2 + 3, empty = 10000 + n;
      places.emplace_back(index.size(), want.size());
      lists.push_back({0, 0, n, n_blocks, empty, 0});
      for (uint32_t i = 0; i < n; ++i) {
        index.push_back(i % 5 == 3 ? UINT32_MAX - i : i % 7 == 2 ? n_blocks + i : i % n_blocks);
        want.push_back(index.back() < n_blocks ? index.back() : empty);
      }
      want.push_back(kUntouched);
    }
    const DeviceArray<uint32_t> from(index);
    const DeviceArray<uint32_t> items(std::vector<uint32_t>(want.size(), kUntouched));
    for (size_t i = 0; i < lists.size(); ++i) {
      lists[i].index = address(from) + 4 * places[i].first;
      lists[i].items = address(items) + 4 * places[i].second;
    }
    const DeviceArray<ChosenList> sent(lists);
    place_lists(address(sent), static_cast<uint32_t>(lists.size()), 0, 0, {});
    CHECK(items.values() == want);
  }

  TEST_CASE("blocks go where their patch says, beside a list in one launch") {
    std::vector<KvBlock> fresh;
    for (uint64_t i = 0; i < 60; ++i) fresh.push_back(block_of(i));
    const DeviceArray<KvBlock> from(fresh), table(std::vector<KvBlock>(100));
    const auto at = [](const DeviceArray<KvBlock>& array, uint64_t i) {
      return address(array) + sizeof(KvBlock) * i;
    };
    const DeviceArray<TablePatch> patches(std::vector<TablePatch>{{at(from, 0), at(table, 3), 55},
                                                                  {at(from, 55), at(table, 90), 1},
                                                                  {at(from, 56), at(table, 0), 0}});
    const DeviceArray<uint32_t> index(std::vector<uint32_t>{4, 9}),
        items(std::vector<uint32_t>{0, 0});
    const DeviceArray<ChosenList> list(
        std::vector<ChosenList>{{address(index), address(items), 2, 9, 77, 0}});
    place_lists(address(list), 1, address(patches), 3, {});
    const std::vector<KvBlock> got = table.values();
    for (uint64_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      const bool is_first = i >= 3 && i < 58;
      CHECK(same(got[i], is_first ? block_of(i - 3) : i == 90 ? block_of(55) : KvBlock{}));
    }
    CHECK(items.values() == std::vector<uint32_t>{4, 77});
  }
}
