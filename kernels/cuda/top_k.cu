// See top_k.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/top_k.h"

#include "kernels/cuda/kv_chunk.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kTopKThreads = 256, kTopKWarps = kTopKThreads / kWarpLanes;
constexpr uint32_t kDigits = 3, kMostBins = 1u << 11;

// Bits of digit `i` of a key, and of the digits behind it.
KVASIR_DEVICE uint32_t digit_bits(uint32_t i) { return i == 2 ? 10 : 11; }
KVASIR_DEVICE uint32_t digit_shift(uint32_t i) { return i == 0 ? 21 : i == 1 ? 10 : 0; }

// Orders like the score. NaN: below -inf, whose key is 0x007fffff.
KVASIR_DEVICE uint32_t order_of(const TopKList& list, uint64_t i) {
  const auto bits = load_at<uint32_t>(list.score + 4 * i);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if (bits == 0x80000000u) return 0x80000000u;  // -0 as +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Sum of `value` over the threads before this one. All threads come.   totals [kTopKWarps]
KVASIR_DEVICE uint32_t sum_before(uint32_t value, Shared<uint32_t> totals) {
  const uint32_t lane = thread_x() % kWarpLanes, warp = thread_x() / kWarpLanes;
  uint32_t sum = value;
  for (uint32_t d = 1; d < kWarpLanes; d *= 2) {
    const uint32_t below = shuffle(kAllLanes, sum, (lane + kWarpLanes - d) % kWarpLanes);
    if (lane >= d) sum += below;
  }
  if (lane == kWarpLanes - 1) totals[warp] = sum;
  block_sync();
  for (uint32_t w = 0; w < warp; ++w) sum += totals[w];
  return sum - value;
}

// Of the keys that begin with `prefix`: the digit of the wanted-th largest, the how-manieth it is
// among those of that digit, and how many these are. found [3]
struct Digit {
  uint32_t value, wanted, n;
};
KVASIR_DEVICE Digit find_digit(const TopKList& list, uint32_t digit, uint32_t prefix,
                               uint32_t wanted, Shared<uint32_t> counts, Shared<uint32_t> totals,
                               Shared<uint32_t> found) {
  const uint32_t bits = digit_bits(digit), shift = digit_shift(digit), n_bins = 1u << bits;
  for (uint32_t bin = thread_x(); bin < n_bins; bin += kTopKThreads) counts[bin] = 0;
  block_sync();
  for (uint64_t i = thread_x(); i < list.n; i += kTopKThreads) {
    const uint32_t key = order_of(list, i);
    if (digit == 0 || key >> (shift + bits) == prefix)
      atomic_add(counts + (key >> shift & (n_bins - 1)), 1u);
  }
  block_sync();
  // Thread 0 has the highest bins.
  const uint32_t own = n_bins / kTopKThreads, end = n_bins - thread_x() * own;
  uint32_t mine = 0;
  for (uint32_t bin = end - own; bin < end; ++bin) mine += counts[bin];
  uint32_t above = sum_before(mine, totals);
  if (above < wanted && wanted <= above + mine) {
    uint32_t bin = end - 1;
    for (; above + counts[bin] < wanted; --bin) above += counts[bin];
    found[0] = bin;
    found[1] = wanted - above;
    found[2] = counts[bin];
  }
  block_sync();
  return {found[0], found[1], found[2]};
}

// Indices of the keys above `least`, and of `n_ties` that equal it, behind the first `n_skipped` of
// them.   totals [2][warps]
KVASIR_DEVICE void list_from(const TopKList& list, uint32_t least, uint32_t n_skipped,
                             uint32_t n_ties, Shared<uint32_t> totals) {
  const uint32_t lane = thread_x() % kWarpLanes, warp = thread_x() / kWarpLanes;
  const uint32_t lanes_below = (1u << lane) - 1;
  const Global<uint32_t> index = global<uint32_t>(list.index);
  uint32_t n_above = 0, n_equal = 0, side = 0;  // before this tile
  for (uint64_t first = 0; first < list.n; first += kTopKThreads, side ^= 1u) {
    const uint64_t i = first + thread_x();
    const uint32_t key = i < list.n ? order_of(list, i) : 0;
    const bool is_above = i < list.n && key > least, is_equal = i < list.n && key == least;
    const uint32_t above = ballot(kAllLanes, is_above), equal = ballot(kAllLanes, is_equal);
    // Two sides in turn: one barrier per tile.
    const Shared<uint32_t> tile = totals + side * kTopKWarps;
    if (lane == 0) tile[warp] = count_bits(above) | count_bits(equal) << 16;
    block_sync();
    uint32_t above_before = n_above + count_bits(above & lanes_below);
    uint32_t equal_before = n_equal + count_bits(equal & lanes_below);
    for (uint32_t w = 0; w < kTopKWarps; ++w) {
      const uint32_t total = tile[w], of_above = total & 0xffffu, of_equal = total >> 16;
      n_above += of_above;
      n_equal += of_equal;
      if (w >= warp) continue;
      above_before += of_above;
      equal_before += of_equal;
    }
    const uint32_t skipped = equal_before < n_skipped ? equal_before : n_skipped;
    const uint32_t behind = equal_before - skipped, ties = behind < n_ties ? behind : n_ties;
    if (is_above || (is_equal && equal_before >= n_skipped && behind < n_ties))
      index[above_before + ties] = list.first + static_cast<uint32_t>(i);
  }
}

KVASIR_KERNEL void KVASIR_BOUNDS(kTopKThreads) choose_best(uint64_t lists) {
  KVASIR_SHARED(uint32_t, counts, kMostBins);
  KVASIR_SHARED(uint32_t, totals, 2 * kTopKWarps);
  KVASIR_SHARED(uint32_t, found, 3);
  const auto list = load_at<TopKList>(lists + sizeof(TopKList) * block_x());
  if (list.k == 0) return;
  if (list.k >= list.n) {
    for (uint64_t i = thread_x(); i < list.n; i += kTopKThreads)
      global<uint32_t>(list.index)[i] = list.first + static_cast<uint32_t>(i);
    return;
  }
  uint32_t prefix = 0, wanted = list.k, n_equal = 0;
  for (uint32_t digit = 0; digit < kDigits; ++digit) {
    const Digit next = find_digit(list, digit, prefix, wanted, counts, totals, found);
    prefix = prefix << digit_bits(digit) | next.value;
    wanted = next.wanted;
    n_equal = next.n;
  }
  list_from(list, prefix, list.higher_first ? n_equal - wanted : 0, wanted, totals);
}

}  // namespace

void top_k(uint64_t lists, uint32_t n_lists, Stream stream) {
  launch(choose_best, {.blocks_x = n_lists, .threads = kTopKThreads}, stream, lists);
}

}  // namespace kvasir::cuda
