// Tokens of blocks on the device: the bytes that the host's conversion makes, and rows that move as
// a walk over the list moves them.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/convert.h"
#include "kernels/cuda/token_rows.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/kv_types.h"
#include "tests/kernels/rows.h"

namespace {
using namespace kvasir::cuda;
using kvasir::kernels::ElementType;
using kvasir::test::DeviceArray;
using kvasir::test::is_grouped;
using kvasir::test::kKvTypes;
using kvasir::test::random_floats;

uint64_t row_bytes(KvType type, uint32_t dim) {
  return kvasir::kernels::row_bytes(static_cast<ElementType>(type), dim);
}

std::vector<uint8_t> converted(KvType type, const std::vector<float>& x) {
  std::vector<uint8_t> out(row_bytes(type, static_cast<uint32_t>(x.size())));
  kvasir::kernels::convert_from_f32(static_cast<ElementType>(type), x.data(), out.data(), x.size());
  return out;
}

// Rows that hold what is rare: zeros, equal extremes of both signs, ties, large and tiny numbers.
std::vector<float> odd_rows(uint32_t n_rows, uint32_t dim) {
  std::vector<float> x = random_floats(size_t{n_rows} * dim, 1.0f, 7);
  const auto row = [&](uint32_t i) { return x.data() + size_t{i} * dim; };
  std::fill_n(row(0), dim, 0.0f);
  row(1)[dim - 1] = -9.0f, row(1)[0] = 9.0f;
  row(2)[0] = -9.0f, row(2)[dim - 1] = 9.0f;
  for (uint32_t d = 0; d < dim; ++d) row(3)[d] = std::ldexp(row(3)[d], -26);
  for (uint32_t d = 0; d < dim; ++d) row(4)[d] *= 3e4f;
  for (uint32_t d = 0; d < dim; ++d) row(5)[d] = static_cast<float>(d % 5) * 0.5f * 127 / 2;
  return x;
}

}  // namespace

TEST_SUITE("kernels/cuda/token_rows") {
  TEST_CASE("rows are stored as the host stores them, byte for byte, in every type") {
    for (const KvType type : kKvTypes) {
      CAPTURE(static_cast<int>(type));
      const uint32_t n = 9, dim = is_grouped(type) ? 96 : 37, v_dim = is_grouped(type) ? 32 : 5;
      const std::vector<float> k = odd_rows(n, dim), v = random_floats(n * v_dim, 1.0f, 9);
      const uint64_t k_bytes = row_bytes(type, dim), v_bytes = row_bytes(type, v_dim);
      const DeviceArray<uint8_t> to_k(std::vector<uint8_t>(n * k_bytes, 0)),
          to_v(std::vector<uint8_t>(n * v_bytes, 0));
      std::vector<TokenRow> rows;
      for (uint64_t i = 0; i < n; ++i)  // backwards
        rows.push_back({address(to_k) + i * k_bytes, address(to_v) + i * v_bytes, n - 1 - i});
      const DeviceArray<TokenRow> list(rows);
      const DeviceArray<float> from_k(k), from_v(v);
      write_rows({address(list), n, dim, v_dim, type, type}, address(from_k), address(from_v), {});
      const std::vector<uint8_t> all_k = to_k.values(), all_v = to_v.values();
      for (uint64_t i = 0; i < n; ++i) {
        CAPTURE(i);
        const uint64_t at = n - 1 - i;
        const auto part = [&](const std::vector<float>& x, uint32_t width) {
          return std::vector<float>(x.begin() + at * width, x.begin() + (at + 1) * width);
        };
        const std::vector<uint8_t> want_k = converted(type, part(k, dim));
        const std::vector<uint8_t> want_v = converted(type, part(v, v_dim));
        CHECK(std::equal(want_k.begin(), want_k.end(), all_k.begin() + i * k_bytes));
        CHECK(std::equal(want_v.begin(), want_v.end(), all_v.begin() + i * v_bytes));
      }
    }
  }

  TEST_CASE("fp8 rounds, saturates and keeps NaN as the host does, bit for bit") {
    std::vector<float> x;
    for (uint32_t upper = 0; upper < 0x10000; ++upper)  // with what is just off a tie
      for (const uint32_t lower : {0u, 1u, 0xffffu})
        if (upper % 8 == 0 || lower == 0) x.push_back(std::bit_cast<float>(upper << 16 | lower));
    const auto dim = static_cast<uint32_t>(x.size());
    const DeviceArray<uint8_t> to(2 * x.size());
    const DeviceArray<TokenRow> list(std::vector<TokenRow>{{address(to), address(to) + dim, 0}});
    const DeviceArray<float> from(x);
    write_rows({address(list), 1, dim, dim, KvType::kFp8, KvType::kFp8}, address(from),
               address(from), {});
    std::vector<uint8_t> wanted = converted(KvType::kFp8, x);
    wanted.insert(wanted.end(), wanted.begin(), wanted.begin() + dim);
    CHECK(to.values() == wanted);
  }

  TEST_CASE("a group that is not finite, or that a scale cannot hold, reads back as NaN") {
    for (const KvType type : {KvType::kQ8_0, KvType::kQ4_0}) {
      for (const float odd : {std::nanf(""), -std::numeric_limits<float>::infinity(), 1e8f}) {
        std::vector<float> x = random_floats(64, 1.0f, 3);
        x[40] = odd;
        const uint64_t bytes = row_bytes(type, 64);
        const DeviceArray<uint8_t> to(std::vector<uint8_t>(2 * bytes, 0));
        const DeviceArray<TokenRow> list(
            std::vector<TokenRow>{{address(to), address(to) + bytes, 0}});
        const DeviceArray<float> from(x);
        write_rows({address(list), 1, 64, 64, type, type}, address(from), address(from), {});
        const std::vector<uint8_t> stored = to.values();
        std::vector<float> back(64);
        kvasir::kernels::convert_to_f32(static_cast<ElementType>(type), stored.data(), back.data(),
                                        64);
        for (size_t i = 0; i < 64; ++i) CHECK(std::isnan(back[i]) == (i >= 32));
        CHECK(std::equal(stored.begin(), stored.begin() + bytes, stored.begin() + bytes));
      }
    }
  }

  TEST_CASE("rows come out packed, and go back to where they were") {
    for (const KvType type : kKvTypes) {
      CAPTURE(static_cast<int>(type));
      const uint32_t n = 5, dim = is_grouped(type) ? 64 : 37, v_dim = is_grouped(type) ? 32 : 5;
      const uint64_t k_bytes = row_bytes(type, dim), v_bytes = row_bytes(type, v_dim);
      std::vector<uint8_t> blocks(n * (k_bytes + v_bytes));
      std::mt19937 random(5);
      for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
      const DeviceArray<uint8_t> from(blocks), to(std::vector<uint8_t>(blocks.size(), 0)),
          packed(blocks.size());
      std::vector<TokenRow> rows, back;
      std::vector<uint8_t> wanted;
      for (uint64_t i = 0; i < n; ++i) {  // K of all, then V of all
        const uint64_t k = i * k_bytes, v = n * k_bytes + i * v_bytes, at = i * (k_bytes + v_bytes);
        rows.push_back({address(from) + k, address(from) + v, at});
        back.push_back({address(to) + k, address(to) + v, at});
        wanted.insert(wanted.end(), blocks.begin() + k, blocks.begin() + k + k_bytes);
        wanted.insert(wanted.end(), blocks.begin() + v, blocks.begin() + v + v_bytes);
      }
      const DeviceArray<TokenRow> list(rows), other(back);
      pack_rows({address(list), n, dim, v_dim, type, type}, address(packed), {});
      CHECK(packed.values() == wanted);
      unpack_rows({address(other), n, dim, v_dim, type, type}, address(packed), {});
      CHECK(to.values() == blocks);
    }
  }

  TEST_CASE("tokens move in the order of the list, also over one another") {
    constexpr uint32_t kHeads = 3, kTokens = 16, kK = 300, kV = 35;
    std::mt19937 random(11);
    std::vector<uint8_t> k(2 * kHeads * kTokens * kK), v(2 * kHeads * kTokens * kV);
    for (uint8_t& byte : k) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : v) byte = static_cast<uint8_t>(random());
    const DeviceArray<uint8_t> on_k(k), on_v(v);
    struct Move {
      uint32_t from_block, from, to_block, to, n, head;
      bool one_head;  // both blocks begin at that head
    };
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    std::vector<Move> list;
    for (uint32_t i = 0; i < 40; ++i) {
      const uint32_t n = below(5), head = below(4);
      list.push_back({below(2), below(11), below(2), below(11), n, head == 3 ? UINT32_MAX : head,
                      head != 3 && below(2) == 0});
    }
    std::vector<TokenMove> moves;
    for (const Move& m : list) {
      const uint32_t head = m.one_head ? m.head : 0;
      const auto at = [&](uint64_t base, uint32_t block, uint32_t token, uint32_t row) {
        return base + (uint64_t{block} * kHeads * kTokens + head * kTokens + token) * row;
      };
      moves.push_back(
          {at(address(on_k), m.from_block, m.from, kK), at(address(on_v), m.from_block, m.from, kV),
           at(address(on_k), m.to_block, m.to, kK), at(address(on_v), m.to_block, m.to, kV), m.n,
           m.head, m.one_head, m.one_head});
      for (uint32_t h = 0; h < kHeads; ++h) {  // what is wanted
        if (m.head != UINT32_MAX && m.head != h) continue;
        for (uint32_t t = 0; t < m.n; ++t) {
          const auto row = [&](uint32_t block, uint32_t token) {
            return (size_t{block} * kHeads + h) * kTokens + token + t;
          };
          std::memmove(&k[row(m.to_block, m.to) * kK], &k[row(m.from_block, m.from) * kK], kK);
          std::memmove(&v[row(m.to_block, m.to) * kV], &v[row(m.from_block, m.from) * kV], kV);
        }
      }
    }
    const DeviceArray<TokenMove> on_device(moves);
    move_tokens({address(on_device), static_cast<uint32_t>(moves.size()), kHeads, kK, kV,
                 kTokens * kK, kTokens * kV},
                {});
    CHECK(on_k.values() == k);
    CHECK(on_v.values() == v);
  }
}
