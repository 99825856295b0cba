// Attention kernels of CUDA devices against the double-precision oracle, over every shape of list.
// In the emulation each access is checked as well: bounds, races, barriers, masks.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/kv_types.h"

namespace {
using kvasir::cuda::Instructions;
using kvasir::cuda::KvType;
using kvasir::test::CudaCase;
using kvasir::test::CudaResult;
using kvasir::test::is_grouped;
using kvasir::test::kKvTypes;
using kvasir::test::random_floats;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// One sequence per length, its queries behind all keys.
void add_sequences(CudaCase& c, const std::vector<uint32_t>& lengths, uint32_t format) {
  std::vector<uint32_t> positions;
  for (const uint32_t n : lengths) positions.push_back(std::max(1u, n) - 1);
  const uint32_t part = c.add_part(positions);
  for (uint32_t q = 0; q < lengths.size(); ++q) {
    const uint32_t first = c.n_blocks(part);
    c.add_blocks(part, format, 0, lengths[q]);
    for (uint32_t head = 0; head < c.shape.n_kv_heads; ++head)
      c.add_range(part, head, q, 1, first, c.n_blocks(part));
  }
}

// Ranges of prompts and of decoded tokens, cut at every 256 or 512 slots.
void check_launches(Instructions instructions, KvType product, uint32_t block_size) {
  CAPTURE(static_cast<int>(instructions));
  CAPTURE(static_cast<int>(product));
  CAPTURE(block_size);
  const bool is_portable = instructions == Instructions::kPortable;
  CudaCase c(6, 2, is_portable ? 32 : 64, is_portable ? 24 : 64, block_size);
  c.instructions = instructions;
  c.product = product;
  c.add_format(KvType::kF16, KvType::kF16);
  const uint32_t blocks = c.add_part({640, 641, 642, 300, 5});
  c.add_blocks(blocks, 0, 0, 643);
  const uint64_t n = c.n_blocks(blocks);
  const uint32_t tokens = c.add_part({640, 641, 642, 300, 5}, true);
  c.add_blocks(tokens, 0, 0, 600);
  std::vector<uint32_t> items(600);
  for (uint32_t i = 0; i < 600; ++i) items[i] = i;
  c.set_items(tokens, items);
  for (uint32_t head = 0; head < 2; ++head) {
    c.is_prefill = true;
    c.add_range(blocks, head, 0, 3, 0, n);
    c.add_range(tokens, head, 1, 2, 0, 530);
    c.is_prefill = false;
    c.add_range(blocks, head, 3, 2, 0, n);
    c.add_range(tokens, head, 3, 1, 13, 570);
    c.add_range(blocks, head, 0, 1, 0, 0);
  }
  const CudaResult whole = c.run(), cut = c.run(256), few = c.run(512);
  CHECK(cut.o == whole.o);
  CHECK(cut.lse == whole.lse);
  CHECK(few.o == whole.o);
  CHECK(few.lse == whole.lse);
}

}  // namespace

TEST_SUITE("kernels/cuda/attention") {
  TEST_CASE("every element type and odd lengths, around the tile, the split and none at all") {
    for (const KvType type : kKvTypes) {
      for (const size_t gap : {size_t{0}, size_t{2}}) {  // 16-byte loads, and rows aligned to less
        if (gap != 0 && is_grouped(type)) continue;      // never aligned to 16
        CAPTURE(static_cast<int>(type));
        CAPTURE(gap);
        CudaCase c(8, 2, 64, 64);
        c.add_format(type, type, gap);
        add_sequences(c, {0, 1, 15, 33, 255, 257}, 0);
        c.check();
      }
    }
  }

  TEST_CASE("every size of a group of query heads, also more than a pass takes") {
    for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 20u}) {
      CAPTURE(group);
      CudaCase c(2 * group, 2, 32, 32);
      c.add_format(KvType::kF16, KvType::kF16);
      add_sequences(c, {70}, 0);
      c.check();
    }
  }

  TEST_CASE(
      "heads of 64 and 128 in half types: every group, rows aligned to 16 bytes and to less") {
    for (const uint32_t dim : {64u, 128u}) {
      for (const KvType type : {KvType::kF16, KvType::kBF16}) {
        for (const uint32_t group : {1u, 3u, 4u, 5u, 8u, 9u}) {
          CAPTURE(dim);
          CAPTURE(static_cast<int>(type));
          CAPTURE(group);
          CudaCase c(group, 1, dim, dim);
          c.add_format(type, type, group % 2 == 0 ? 0 : 2);
          add_sequences(c, {7, 31, 64, 75, 300}, 0);
          c.check();
        }
      }
    }
  }

  TEST_CASE("queries of any magnitude, and of very unlike ones, keep the precision of f32") {
    for (const KvType type : {KvType::kF16, KvType::kBF16}) {
      for (const float scale : {1e-30f, 1e-6f, 1.0f, 3e5f, 1e20f}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(scale);
        CudaCase c(4, 1, 128, 128);
        c.shape.softmax_scale = 0.3f / scale;
        c.add_format(type, type);
        add_sequences(c, {100}, 0);
        std::vector<float> q = random_floats(4 * 128, scale, 5);
        for (size_t i = 0; i < q.size(); i += 3) q[i] *= 1e-5f;
        c.set_query(0, q);
        c.check_decode(2e-6);  // prompts in f16 round queries to it
      }
    }
  }

  TEST_CASE("many keys of little weight beside a heavy one count as in f32") {
    for (const KvType type : {KvType::kF16, KvType::kBF16}) {
      CAPTURE(static_cast<int>(type));
      CudaCase c(4, 1, 64, 64);
      c.add_format(type, type);
      const uint32_t part = c.add_part({31}, true);
      c.add_blocks(part, 0, 0, 32);
      c.shape.softmax_scale = 1e-6f;  // the weights alone count
      // The same token again and again, and a heavy one for each warp, whose V is 0: tensor cores
      // cut sums to the bits of the largest term, which is not what is looked at.
      c.clear_values(part, 1);
      std::vector<uint32_t> items(512, 5);
      std::vector<float> weights(items.size(), -17.63f);  // 2.2e-8 beside 1
      for (size_t i = 3; i < items.size(); i += 64) {
        items[i] = 20;
        weights[i] = 0.0f;
      }
      c.set_items(part, items);
      c.set_weights(part, 1, weights);
      c.add_range(part, 0, 0, 1, 0, items.size());
      // The lower limb of f16 has few bits left so far below 1.
      c.check_decode(type == KvType::kF16 ? 1e-4 : 2.5e-6);
    }
  }

  TEST_CASE("every head_dim, also where it is no multiple of 8, and where V differs from K") {
    for (const auto& [head_dim, v_dim] : {std::pair{1u, 1u},
                                          {8u, 8u},
                                          {36u, 36u},
                                          {65u, 3u},
                                          {100u, 100u},
                                          {128u, 128u},
                                          {192u, 128u},
                                          {256u, 256u}}) {
      for (const KvType type : kKvTypes) {
        if (is_grouped(type) && (head_dim % 32 != 0 || v_dim % 32 != 0)) continue;
        CAPTURE(head_dim);
        CAPTURE(static_cast<int>(type));
        CudaCase c(4, 1, head_dim, v_dim);
        c.add_format(type, type);
        add_sequences(c, {45}, 0);
        c.check();
      }
    }
  }

  TEST_CASE("element types that differ between K and V, and from block to block") {
    CudaCase c(6, 2, 32, 64);
    c.add_format(KvType::kF16, KvType::kF32);
    c.add_format(KvType::kQ8_0, KvType::kBF16);
    c.add_format(KvType::kQ4_0, KvType::kFp8, 1);
    const uint32_t part = c.add_part({150});
    for (uint32_t block = 0; block < 9; ++block) c.add_block(part, block % 3, 16 * block, 16);
    c.add_ranges(part);
    c.check();
  }

  TEST_CASE("rows that are aligned to 16 bytes in one block and to less in the next") {
    for (const KvType type : {KvType::kF16, KvType::kBF16}) {
      CudaCase c(4, 1, 64, 40, 128);
      c.add_format(type, type, 2);
      c.add_format(type, type);
      c.add_format(type, type, 8);
      const uint32_t part = c.add_part({511});
      for (uint32_t block = 0; block < 4; ++block) c.add_block(part, block % 3, 128 * block, 128);
      c.add_ranges(part);
      c.check();
    }
  }

  TEST_CASE("lists of blocks, ragged per kv head, with blocks that are not full") {
    CudaCase c(4, 2, 64, 64);
    c.add_format(KvType::kBF16, KvType::kBF16);
    const uint32_t part = c.add_part({5000, 200});
    for (uint32_t block = 0; block < 40; ++block)
      c.add_block(part, 0, 100 * block, block % 5 == 4 ? block % 16 : 16);
    std::vector<uint32_t> items;
    for (uint32_t i = 0; i < 40; i += i % 3 + 1) items.push_back(i);
    c.set_items(part, items);
    c.add_range(part, 0, 0, 1, 0, items.size());
    c.add_range(part, 1, 0, 1, 3, 4);
    c.add_range(part, 0, 1, 1, 5, 5);  // nothing
    c.add_range(part, 1, 1, 1, 0, 9);
    c.check();
  }

  TEST_CASE("lists of tokens with a weight per item, or per item and query head") {
    for (const uint32_t width : {0u, 1u, 3u}) {
      CAPTURE(width);
      CudaCase c(6, 2, 40, 24);
      c.add_format(KvType::kF32, KvType::kF32);
      const uint32_t part = c.add_part({500, 80}, true);
      c.add_blocks(part, 0, 0, 90);
      c.set_items(part, {0, 1, 5, 17, 33, 34, 47, 48, 79, 85, 3, 4, 88});
      if (width != 0) {
        std::vector<float> weights = random_floats(13 * width, 1.0f, 3);
        weights[2] = weights[3 * width] = kMinusInfinity;
        c.set_weights(part, width, weights);
      }
      c.add_range(part, 0, 0, 1, 0, 10);
      c.add_range(part, 1, 0, 1, 10, 13);
      c.add_range(part, 0, 1, 1, 2, 10);
      c.add_range(part, 1, 1, 1, 5, 5);
      c.check();
    }
  }

  TEST_CASE("a block of which no head sees anything is neutral; weights hide keys from one head") {
    CudaCase c(3, 1, 32, 32);
    c.add_format(KvType::kF16, KvType::kF16);
    const uint32_t part = c.add_part({300});
    c.add_blocks(part, 0, 0, 64);
    std::vector<float> weights = random_floats(4 * 3, 1.0f, 5);
    for (const uint32_t i : {3u, 4u, 5u, 9u}) weights[i] = kMinusInfinity;
    c.set_weights(part, 3, weights);
    c.add_range(part, 0, 0, 1, 0, 4);
    c.check();
    c.set_weights(part, 3, std::vector<float>(12, kMinusInfinity));
    c.check();
    const CudaResult nothing = c.run();
    for (const float x : nothing.o) CHECK(x == 0.0f);
    for (const float x : nothing.lse) CHECK(x == kMinusInfinity);
  }

  TEST_CASE("distances limit what a query sees, with positions in order and in none") {
    for (const auto& [near, far] :
         {std::pair{0u, 1u}, {1u, 33u}, {16u, 48u}, {300u, UINT32_MAX}, {7u, 8u}, {100u, 50u}}) {
      CAPTURE(near);
      CudaCase c(2, 2, 16, 16);
      c.add_format(KvType::kF16, KvType::kF16);
      const uint32_t part = c.add_part({120, 64, 5});
      c.part(part).dist_min = near;
      c.part(part).dist_max = far;
      c.add_blocks(part, 0, 30, 80);
      c.add_block(part, 0, 0, 5, {119, 3, 64, 5, 121});
      c.add_ranges(part);
      c.check();
    }
  }

  TEST_CASE(
      "parts with queries and distances of their own make one softmax; others stay untouched") {
    CudaCase c(4, 2, 32, 32);
    c.add_format(KvType::kF16, KvType::kF16);
    const std::vector<uint32_t> positions = {200, 201, 202};
    const uint32_t near = c.add_part(positions);
    c.part(near).dist_max = 64;
    c.add_blocks(near, 0, 100, 100);
    c.add_range(near, 0, 0, 2, 0, c.n_blocks(near));
    const uint32_t far = c.add_part(positions);
    c.part(far).dist_min = 64;
    c.add_blocks(far, 0, 0, 180);
    c.add_range(far, 0, 1, 1, 0, c.n_blocks(far));
    c.add_range(far, 1, 1, 2, 2, 9);
    c.check();
  }

  TEST_CASE("several queries of a range each see the keys at or before them") {
    CudaCase c(6, 2, 24, 20);
    c.add_format(KvType::kF32, KvType::kF32);
    const uint32_t part = c.add_part({3, 9, 10, 17, 40, 41});
    c.add_blocks(part, 0, 0, 42);
    c.add_ranges(part);
    c.check();
  }

  TEST_CASE("a lease of one kv head starts at that head") {
    CudaCase c(4, 2, 16, 16);
    c.add_format(KvType::kF16, KvType::kF16);
    const uint32_t part = c.add_part({20});
    c.add_block(part, 0, 0, 16);
    c.add_block(part, 0, 0, 16, {}, 1.0f, 1);
    c.add_range(part, 0, 0, 1, 0, 1);
    c.add_range(part, 1, 0, 1, 1, 2);
    c.check();
  }

  TEST_CASE("sharp and flat logits, a softcap, and logits near 200 that must not overflow") {
    for (const float scale : {0.0f, 1e-3f, 6.0f}) {
      for (const float softcap : {0.0f, 30.0f}) {
        CAPTURE(scale);
        CudaCase c(4, 1, 64, 64);
        c.shape.softcap = softcap;
        c.add_format(KvType::kF32, KvType::kF32);
        const uint32_t part = c.add_part({299});
        c.add_blocks(part, 0, 0, 300, scale);
        c.add_ranges(part);
        c.check();
      }
    }
    CudaCase c(1, 1, 8, 8);
    c.shape.softmax_scale = 1.0f;
    c.add_format(KvType::kF32, KvType::kF32);
    const uint32_t part = c.add_part({40});
    c.set_query(part, std::vector<float>(8, 12.0f));
    c.add_blocks(part, 0, 0, 40, 3.0f);
    c.add_ranges(part);
    CHECK(std::fabs(c.expected().lse[0]) > 150.0f);
    c.check();
  }

  TEST_CASE("blocks of tokens that no split is a multiple of, and larger than one") {
    for (const uint32_t block_size : {1u, 48u, 300u}) {
      CAPTURE(block_size);
      CudaCase c(2, 1, 16, 16, block_size);
      c.add_format(KvType::kF16, KvType::kF16);
      add_sequences(c, {500}, 0);
      c.check();
    }
  }

  TEST_CASE("the same bits alone and in company, and whatever lies behind the query") {
    const auto build = [](CudaCase& c, bool in_company) {
      c.add_format(KvType::kF16, KvType::kF16);
      const uint32_t part = c.add_part({399, 39});
      c.add_blocks(part, 0, 0, in_company ? 700 : 400);
      for (uint32_t head = 0; head < 2; ++head)
        c.add_range(part, head, 0, in_company ? 2 : 1, 0, c.n_blocks(part));
    };
    CudaCase alone(4, 2, 16, 16), company(4, 2, 16, 16);
    build(alone, false);
    build(company, true);
    for (const Instructions instructions : kvasir::test::all_instructions()) {
      CAPTURE(static_cast<int>(instructions));
      alone.instructions = company.instructions = instructions;
      const CudaResult a = alone.run(), b = company.run();
      REQUIRE(a.o[0] != kvasir::test::kNotWritten);
      CHECK(std::equal(a.o.begin(), a.o.begin() + 4 * 16, b.o.begin()));
      CHECK(std::equal(a.lse.begin(), a.lse.begin() + 4, b.lse.begin()));
      CHECK(company.run().o == b.o);
    }
  }

  TEST_CASE("a NaN of a key is seen, and of no key that is not") {
    for (const uint32_t n_seen : {7u, 20u}) {
      CudaCase c(2, 1, 16, 16, 32);
      c.add_format(KvType::kF32, KvType::kF32);
      const uint32_t part = c.add_part({n_seen - 1});
      c.add_block(part, 0, 0, 20, {}, n_seen == 20 ? std::nanf("") : 1.0f);
      c.add_ranges(part);
      CHECK(std::isnan(c.run().o[0]) == (n_seen == 20));
    }
  }

  TEST_CASE("launches over some of the slots each give the bits of one over all") {
    for (const Instructions instructions : kvasir::test::all_instructions())
      for (const uint32_t block_size : {16u, 48u, 300u})  // of which two do not divide 256
        for (const KvType product : {KvType::kF32, KvType::kF16})
          check_launches(instructions, product, block_size);
  }

  TEST_CASE("queries are planned in waves without another result") {
    namespace cuda = kvasir::cuda;
    const cuda::AttentionShape shape{4, 2, 16, 16, 16, 1.0f, 0.0f};
    const std::vector<cuda::AttentionRange> ranges = {
        {0, 0, 0, 5, 0, 40, 0, 0}, {1, 1, 2, 2, 3, 3, 0, 0}, {0, 0, 3, 1, 0, 257, 0, 0}};
    cuda::AttentionUnits all, wave;
    cuda::plan_units(shape, ranges, {false, true}, 0, 5, all);
    CHECK(all.n_units == 5 * 3 + 17);
    CHECK(all.pairs.size() == 7);
    CHECK(all.spans.size() == 8);
    uint64_t n_units = 0, n_pairs = 0;
    for (uint32_t q = 0; q < 5; ++q) {
      cuda::plan_units(shape, ranges, {false, true}, q, q + 1, wave);
      n_units += wave.n_units;
      n_pairs += wave.pairs.size();
      for (const cuda::AttentionPair& pair : wave.pairs) CHECK(pair.query == q);
    }
    CHECK(n_units == all.n_units);
    CHECK(n_pairs == all.pairs.size());
  }
}
