// Prefill attention of CUDA devices beyond the cases that it shares with decode attention: tiles of
// many rows, the diagonal, pieces of a prompt, and numbers that a product's type does not hold.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "tests/kernels/cuda/attention_case.h"
#include "tests/support/effort.h"

namespace {
using kvasir::cuda::Instructions;
using kvasir::cuda::KvType;
using kvasir::test::CudaCase;
using kvasir::test::CudaResult;

std::vector<uint32_t> positions(uint32_t begin, uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// A prompt's queries [begin, begin + n) over all keys of a sequence of `length`.
uint32_t add_prompt(CudaCase& c, uint32_t begin, uint32_t n, uint32_t length) {
  c.is_prefill = true;
  const uint32_t part = c.add_part(positions(begin, n));
  c.add_blocks(part, 0, 0, length);
  c.add_ranges(part);
  return part;
}

// How prompts may be multiplied: the product's type and the instructions.
struct Way {
  KvType product;
  Instructions instructions;
  uint32_t head_dim;  // that the instructions are used for
};
std::vector<Way> all_ways() {
  std::vector<Way> out = {{KvType::kF32, Instructions::kPortable, 32}};
  for (const Instructions instructions : kvasir::test::all_instructions())
    out.push_back(
        {KvType::kF16, instructions, instructions == Instructions::kPortable ? 32u : 64u});
  return out;
}

}  // namespace

TEST_SUITE("kernels/cuda/prefill") {
  TEST_CASE(
      "blocks of whole tiles: in order and in none, full and not, aligned to 16 and to less") {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t block_size : {128u, 256u}) {
        for (const size_t gap : {size_t{0}, size_t{2}}) {
          CAPTURE(dim);
          CAPTURE(block_size);
          CAPTURE(gap);
          CudaCase c(4, 1, dim, dim, block_size);
          c.add_format(KvType::kF16, KvType::kF16, gap);
          const uint32_t part = c.add_part({600, 601, 650, 699});
          std::vector<uint32_t> backwards(block_size);
          for (uint32_t i = 0; i < block_size; ++i) backwards[i] = 2 * (block_size - i);
          backwards[block_size / 2] = 2000;  // seen by nobody, between keys that all see
          c.add_block(part, 0, 0, block_size, backwards);
          c.add_blocks(part, 0, 0, 700);
          c.add_ranges(part);
          c.check();
          if (gap != 0) continue;
          c.shape.softmax_scale = -0.1f;  // logits are not found from the largest product
          c.check();
        }
      }
    }
  }

  TEST_CASE("causal prompts of several tiles, for every size of group") {
    for (const auto& [group, n] : {std::pair{1u, 150u}, {3u, 50u}, {4u, 40u}, {8u, 17u}}) {
      for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
        if (kvasir::test::few_cases() && type != KvType::kF16) continue;
        CAPTURE(group);
        CAPTURE(static_cast<int>(type));
        CudaCase c(group, 1, 64, 64);
        c.add_format(type, type);
        add_prompt(c, 31, n, 31 + n);
        c.check();
      }
    }
  }

  TEST_CASE("more query heads in a group than a tile has rows") {
    CudaCase c(70, 1, 32, 32);
    c.add_format(KvType::kF16, KvType::kF16);
    add_prompt(c, 20, 2, 22);
    c.check();
  }

  TEST_CASE("the widest heads of each product, and V wider than K") {
    for (const auto& [head_dim, v_dim] : {std::pair{256u, 256u}, {64u, 200u}, {130u, 8u}}) {
      CAPTURE(head_dim);
      CudaCase c(4, 2, head_dim, v_dim);
      c.add_format(KvType::kBF16, KvType::kBF16);
      add_prompt(c, 40, 20, 60);
      c.check();
    }
  }

  TEST_CASE("a query has the same bits in pieces of any size, beside decoded tokens and others") {
    for (const Way& way : all_ways()) {
      const uint32_t n = 45, length = 130;
      const auto run_pieces = [&](const std::vector<uint32_t>& pieces, bool in_company) {
        CudaCase c(6, 2, way.head_dim, way.head_dim);
        c.product = way.product;
        c.instructions = way.instructions;
        c.add_format(KvType::kF16, KvType::kF16);
        c.is_prefill = true;
        std::vector<uint32_t> all = positions(length - n, n);
        all.insert(all.end(), {70, 90});
        const uint32_t part = c.add_part(all);
        c.add_blocks(part, 0, 0, length);
        for (uint32_t head = 0; head < 2; ++head) {
          uint32_t begin = 0;
          for (const uint32_t size : pieces) {
            const uint64_t there = length - n + begin + size;  // keys by then
            c.add_range(part, head, begin, size, 0, in_company ? 9 : (there + 15) / 16);
            begin += size;
          }
          REQUIRE(begin == n);
          if (!in_company) continue;
          c.add_range(part, head, n, 1, 2, 7);
          c.is_prefill = false;
          c.add_range(part, head, n + 1, 1, 0, 6);
          c.is_prefill = true;
        }
        CudaResult result = c.run();
        result.o.resize(size_t{n} * 6 * way.head_dim);
        result.lse.resize(size_t{n} * 6);
        return result;
      };
      const CudaResult whole = run_pieces({n}, false);
      for (const std::vector<uint32_t>& pieces : {std::vector<uint32_t>{1, 2, 20, 22}, {44, 1}}) {
        const CudaResult cut = run_pieces(pieces, pieces.size() == 2);
        CHECK(cut.o == whole.o);
        CHECK(cut.lse == whole.lse);
      }
    }
  }

  TEST_CASE(
      "tiles that all rows see whole, and those of which a distance hides one key of one row") {
    // Keys 128 to 191 are a tile; the first query is 9 behind its last key, the last one 101 behind
    // its first.
    for (const auto& [near, far] :
         {std::pair{0u, UINT32_MAX}, {9u, 102u}, {10u, UINT32_MAX}, {0u, 101u}, {10u, 101u}}) {
      CAPTURE(near);
      CAPTURE(far);
      CudaCase c(2, 1, 64, 64);
      c.add_format(KvType::kF16, KvType::kF16);
      c.is_prefill = true;
      const uint32_t part = c.add_part(positions(200, 30));
      c.part(part).dist_min = near;
      c.part(part).dist_max = far;
      c.add_blocks(part, 0, 0, 230, 0.1f);  // each key weighs about as much
      c.add_ranges(part);
      c.check();
    }
  }

  TEST_CASE("tiles behind the diagonal, and before the farthest distance, are not read") {
    CudaCase c(2, 1, 64, 64);
    c.add_format(KvType::kF16, KvType::kF16);
    c.is_prefill = true;
    const uint32_t part = c.add_part(positions(200, 30));
    c.part(part).dist_max = 60;
    c.add_blocks(part, 0, 0, 400);
    c.add_ranges(part);
    const CudaResult wanted = c.run();
    REQUIRE(std::isfinite(wanted.lse[0]));
    for (const Way& way : all_ways()) {
      c.product = way.product;
      c.instructions = way.instructions;
      const CudaResult whole = c.run();
      for (uint32_t block = 0; block < 25; ++block)
        if (16 * block + 15 <= 140 || 16 * block > 229) c.lose_block(part, block);
      const CudaResult lost = c.run();
      CHECK(lost.o == whole.o);
      CHECK(lost.lse == whole.lse);
    }
  }

  TEST_CASE("a NaN or infinity of K or V reaches the queries that see it, and no other") {
    for (const uint16_t odd : {uint16_t{0x7e00}, uint16_t{0x7c00}}) {  // NaN, infinity
      for (const bool is_value : {true, false}) {
        for (const Way& way : all_ways()) {
          CAPTURE(odd);
          CAPTURE(is_value);
          CudaCase c(3, 1, way.head_dim, way.head_dim);
          c.add_format(KvType::kF16, KvType::kF16);
          c.is_prefill = true;
          const uint32_t part = c.add_part(positions(10, 40));
          c.add_blocks(part, 0, 0, 48);
          c.fill_block(part, 2, is_value, odd);
          c.add_ranges(part);
          c.product = way.product;
          c.instructions = way.instructions;
          const CudaResult wanted = c.expected(), actual = c.run();
          const size_t n_before = size_t{22} * 3;  // positions 10 to 31
          const float allowed = way.product == KvType::kF32 ? 2e-5f : 4e-3f;
          for (size_t i = 0; i < actual.o.size(); ++i) {
            if (i < way.head_dim * n_before) {
              CHECK(std::fabs(actual.o[i] - wanted.o[i]) <= allowed);
            } else {
              CHECK(!std::isfinite(actual.o[i]));
            }
          }
        }
      }
    }
  }

  TEST_CASE("a query beyond f16 is computed in f32") {
    for (const uint32_t head_dim : {16u, 64u}) {  // 64: also by panels
      CudaCase c(2, 1, head_dim, head_dim);
      c.shape.softmax_scale = 1e-5f;
      c.add_format(KvType::kF16, KvType::kF16);
      const uint32_t part = add_prompt(c, 30, 6, 36);
      const size_t row = size_t{2} * head_dim;
      std::vector<float> q = kvasir::test::random_floats(6 * row, 1.0f, 7);
      for (size_t i = 2 * row; i < 3 * row; ++i) q[i] *= 1e5f;
      c.set_query(part, q);
      c.check(1e-4);
    }
  }
}
