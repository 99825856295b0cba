// Scores of records in pages on the device against the formulas in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/record_scores.h"

#include <cfloat>

#include "tests/kernels/cuda/record_case.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir::cuda;
using namespace kvasir::test;
using kvasir::kernels::ElementType;
using kvasir::kernels::Records;
namespace reference = kvasir::kernels::reference;

constexpr uint32_t kPageBlocks = 5, kKvHeads = 3;
constexpr float kUntouched = 12345.0f;

// What a list names: blocks, of a sequence and a kv head.
struct Wanted {
  uint32_t sequence, kv_head;
  std::vector<uint32_t> blocks;
  bool is_range;  // blocks follow each other: only the first is said
};

struct Shape {
  uint32_t head_dim, group_size;
  RecordKind kind;
  KvType record;
  bool is_summed;
  float box_scale;
};

// Sequences of 2, 9 and 30 pages of records, page 1 of each missing; a query per sequence.
class PagedCase {
 public:
  explicit PagedCase(const Shape& shape) : shape_(shape) {
    width_ = shape.kind == RecordKind::kMinMax ? 2 * shape.head_dim : shape.head_dim;
    record_bytes_ = (width_ * (shape.record == KvType::kF16 ? 2 : 4) + 3) / 4 * 4 + 4;
    const size_t page_bytes = kKvHeads * kPageBlocks * record_bytes_;
    uint32_t seed = shape.head_dim;
    for (const uint32_t n_pages : {2u, 9u, 30u}) {
      auto& pages = pages_.emplace_back();
      for (uint32_t page = 0; page < n_pages; ++page) {
        const size_t n = kKvHeads * kPageBlocks;
        std::vector<float> x = random_floats(n * width_, 1.0f, ++seed);
        if (shape.kind == RecordKind::kMinMax) sort_bounds(x);
        pages.push_back(store_rows(x, width_, record_bytes_, type()));
        pages.back().resize(page_bytes, 0xff);
      }
      q_.push_back(
          random_floats(size_t{kKvHeads} * shape.group_size * shape.head_dim, 1.0f, ++seed));
    }
  }

  // The scores of each list, [head][candidate].
  std::vector<std::vector<float>> run(const std::vector<Wanted>& wanted) const {
    std::vector<DeviceArray<uint8_t>*> pages;
    std::vector<uint64_t> addresses, first_page;
    std::vector<float> queries;
    for (size_t s = 0; s < pages_.size(); ++s) {
      first_page.push_back(addresses.size());
      for (size_t page = 0; page < pages_[s].size(); ++page) {
        pages.push_back(new DeviceArray<uint8_t>(pages_[s][page]));
        addresses.push_back(page == 1 ? 0 : address_of(*pages.back()));
      }
      queries.insert(queries.end(), q_[s].begin(), q_[s].end());
    }
    std::vector<uint32_t> blocks(1, 0);
    uint64_t n_scores = 1;
    for (const Wanted& list : wanted) {
      blocks.insert(blocks.end(), list.blocks.begin(), list.blocks.end());
      n_scores += list.blocks.size() * n_heads() + 1;
    }
    const DeviceArray<uint64_t> page_list(addresses);
    const DeviceArray<float> q(queries), score(std::vector<float>(n_scores, kUntouched));
    const DeviceArray<uint32_t> candidates(blocks);
    std::vector<ScoreList> lists;
    uint64_t n_units = 0, at = 1, block_at = 1;
    for (const Wanted& list : wanted) {
      const auto n = static_cast<uint32_t>(list.blocks.size());
      const uint64_t head = uint64_t{list.sequence} * kKvHeads + list.kv_head;
      lists.push_back({n_units, address_of(page_list) + 8 * first_page[list.sequence],
                       list.is_range ? 0 : address_of(candidates) + 4 * block_at,
                       address_of(q) + 4 * head * shape_.group_size * shape_.head_dim,
                       address_of(score) + 4 * at, n, n == 0 ? 0 : list.blocks[0],
                       static_cast<uint32_t>(pages_[list.sequence].size()), list.kv_head});
      n_units += score_units(n);
      at += uint64_t{n} * n_heads() + 1;
      block_at += n;
    }
    const DeviceArray<ScoreList> sent(lists);
    score_records({address_of(sent), n_units, static_cast<uint32_t>(lists.size()),
                   shape_.group_size, shape_.head_dim, kPageBlocks, record_bytes_, shape_.kind,
                   shape_.record, shape_.is_summed ? 1u : 0u, shape_.box_scale},
                  {});
    const std::vector<float> all = score.values();
    for (const DeviceArray<uint8_t>* page : pages) delete page;
    std::vector<std::vector<float>> out;
    at = 1;
    CHECK(all[0] == kUntouched);
    for (const Wanted& list : wanted) {
      const uint64_t n = list.blocks.size() * n_heads();
      out.emplace_back(all.begin() + static_cast<long>(at),
                       all.begin() + static_cast<long>(at + n));
      at += n;
      CHECK(all[at++] == kUntouched);
    }
    return out;
  }

  void check(const Wanted& list, const std::vector<float>& got) const {
    std::vector<float> there;
    std::vector<double> want;
    for (uint32_t head = 0; head < n_heads(); ++head)
      for (size_t i = 0; i < list.blocks.size(); ++i) {
        const uint32_t block = list.blocks[i], page = block / kPageBlocks;
        const float score = got[head * list.blocks.size() + i];
        if (page == 1 || page >= pages_[list.sequence].size()) {
          CHECK(score == -FLT_MAX);
          continue;
        }
        there.push_back(score);
        want.push_back(expected(list, head, block));
      }
    check_close(there, want, 1e-5);
  }

 private:
  uint32_t n_heads() const { return shape_.is_summed ? 1 : shape_.group_size; }
  ElementType type() const { return static_cast<ElementType>(shape_.record); }

  // The lower number of each channel is its minimum.
  void sort_bounds(std::vector<float>& x) const {
    for (size_t i = 0; i < x.size(); i += width_)
      for (size_t d = 0; d < shape_.head_dim; ++d)
        if (x[i + d] > x[i + shape_.head_dim + d]) std::swap(x[i + d], x[i + shape_.head_dim + d]);
  }
  double expected(const Wanted& list, uint32_t head, uint32_t block) const {
    const Records records{pages_[list.sequence][block / kPageBlocks].data(), record_bytes_,
                          kKvHeads * kPageBlocks, shape_.head_dim, type()};
    const size_t record = list.kv_head * kPageBlocks + block % kPageBlocks;
    const uint32_t first = shape_.is_summed ? 0 : head;
    const uint32_t end = shape_.is_summed ? shape_.group_size : head + 1;
    double sum = 0;
    for (uint32_t g = first; g < end; ++g) {
      const float* q = q_[list.sequence].data() +
                       (size_t{list.kv_head} * shape_.group_size + g) * shape_.head_dim;
      sum += shape_.kind == RecordKind::kMinMax
                 ? reference::score_min_max(q, double{shape_.box_scale}, records, record)
                 : reference::score_dot(q, records, record);
    }
    return sum;
  }

  Shape shape_;
  size_t width_ = 0;
  uint64_t record_bytes_ = 0;
  std::vector<std::vector<std::vector<uint8_t>>> pages_;  // [sequence][page]
  std::vector<std::vector<float>> q_;                     // [sequence]
};

std::vector<uint32_t> range(uint32_t begin, uint32_t n) {
  std::vector<uint32_t> blocks(n);
  for (uint32_t i = 0; i < n; ++i) blocks[i] = begin + i;
  return blocks;
}
std::vector<uint32_t> every(uint32_t stride, uint32_t end) {
  std::vector<uint32_t> blocks;
  for (uint32_t b = 0; b < end; b += stride) blocks.push_back(b);
  return blocks;
}

// Ranges and lists, empty ones first, between and last, one over several units, one beyond the
// pages of its sequence.
const std::vector<Wanted> kLists = {{0, 0, {}, true},
                                    {0, 1, range(0, 10), true},
                                    {0, 2, range(8, 4), true},
                                    {1, 0, every(3, 45), false},
                                    {1, 1, {}, false},
                                    {1, 2, {44}, false},
                                    {2, 0, range(3, 147), true},
                                    {2, 1, every(2, 150), false},
                                    {2, 2, {}, true}};

}  // namespace

TEST_SUITE("kernels/cuda/record_scores") {
  TEST_CASE("scores of paged records equal the formulas, for every head or summed") {
    for (const uint32_t dim : {1u, 5u, 36u, 64u, 128u, 256u})
      for (const uint32_t group : {1u, 3u, 4u, 8u, 9u})
        for (const RecordKind kind : {RecordKind::kMinMax, RecordKind::kMean})
          for (const KvType record : {KvType::kF32, KvType::kF16})
            for (const bool is_summed : {false, true}) {
              // Long records take long here: of those every size of group with one type.
              if (dim > 36 && (group == 3 || group == 8) && record == KvType::kF32) continue;
              if (few_cases() && dim > 36 && group != 4) continue;
              CAPTURE(dim);
              CAPTURE(group);
              CAPTURE(static_cast<int>(kind));
              CAPTURE(static_cast<int>(record));
              CAPTURE(is_summed);
              const PagedCase c({dim, group, kind, record, is_summed, 1.0f});
              const auto scores = c.run(kLists);
              for (size_t i = 0; i < kLists.size(); ++i) {
                CAPTURE(i);
                c.check(kLists[i], scores[i]);
              }
            }
  }

  TEST_CASE("a smaller box has the score of the smaller box") {
    for (const float box_scale : {0.0f, 0.3f, 0.999f})
      for (const bool is_summed : {false, true}) {
        CAPTURE(box_scale);
        const PagedCase c({37, 4, RecordKind::kMinMax, KvType::kF16, is_summed, box_scale});
        const auto scores = c.run(kLists);
        for (size_t i = 0; i < kLists.size(); ++i) c.check(kLists[i], scores[i]);
      }
  }

  TEST_CASE("a list has the bits that it has alone, and as part of a longer one") {
    const PagedCase c({64, 4, RecordKind::kMinMax, KvType::kF16, false, 1.0f});
    const auto all = c.run(kLists);
    for (size_t i = 0; i < kLists.size(); ++i) CHECK(c.run({kLists[i]})[0] == all[i]);
    const Wanted part{2, 0, range(70, 20), true};
    const std::vector<float> some = c.run({part})[0];
    for (size_t head = 0; head < 4; ++head)
      for (size_t i = 0; i < 20; ++i) CHECK(some[head * 20 + i] == all[6][head * 147 + 67 + i]);
  }

  TEST_CASE("the score of a box bounds the product with each of its keys") {
    RecordCase keys(64, RecordKind::kMinMax, KvType::kF16);
    for (uint32_t b = 0; b < 12; ++b) keys.add(16, ElementType::kF32, 1.0f);
    keys.build(KvType::kF32);
    std::vector<uint8_t> page;
    for (size_t b = 0; b < 12; ++b)
      page.insert(page.end(), keys.stored(b), keys.stored(b) + keys.record_bytes());
    const DeviceArray<uint8_t> records(page);
    const DeviceArray<uint64_t> pages(std::vector<uint64_t>{address_of(records)});
    // One channel at a time: there is no sum that could hide a bound rounded inwards.
    std::vector<float> q(size_t{128} * 64);
    for (size_t i = 0; i < 128; ++i) q[i * 64 + i / 2] = i % 2 ? -1.0f : 1.0f;
    const DeviceArray<float> queries(q), score(128 * 12);
    const DeviceArray<ScoreList> list(std::vector<ScoreList>{
        {0, address_of(pages), 0, address_of(queries), address_of(score), 12, 0, 1, 0}});
    score_records({address_of(list), 1, 1, 128, 64, 12, keys.record_bytes(), RecordKind::kMinMax,
                   KvType::kF16, 0, 1.0f},
                  {});
    const std::vector<float> got = score.values();
    for (size_t i = 0; i < 128; ++i)
      for (size_t b = 0; b < 12; ++b) {
        const auto rows = keys.rows(b);
        for (size_t t = 0; t < rows.n; ++t) {
          const double key =
              reference::element(static_cast<const uint8_t*>(rows.k) + t * rows.token_stride, i / 2,
                                 ElementType::kF32);
          CHECK(got[i * 12 + b] >= (i % 2 ? -key : key));
        }
      }
  }
}
