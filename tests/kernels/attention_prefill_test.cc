// Prefill attention against the double-precision oracle, query by query.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_prefill.h"

#include <limits>

#include "tests/kernels/prefill_call.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::AttentionShape;
using kernels::ElementType;
using kernels::KvRows;
using kernels::PositionMask;

void check_against_reference(const AttentionShape& shape, size_t n_q, const PositionMask& mask,
                             std::span<const KvRows> items, uint32_t seed) {
  const test::PrefillCall call(shape, n_q, mask, items, seed);
  const auto expected = call.expected();
  test::for_each_simd_target([&] {
    const auto got = call.run(kernels::attention_prefill_scratch_bytes, kernels::attention_prefill);
    test::check_close(got.o, expected.o, test::kAttentionTolerance);
    test::check_close(got.lse, expected.lse, test::kAttentionTolerance);
  });
}

}  // namespace

TEST_SUITE("kernels/attention_prefill") {
  TEST_CASE("a causal chunk at the end of its keys equals the formula") {
    for (const ElementType type : test::kElementTypes) {
      for (const size_t n_q : {1, 7, 33, 130}) {
        for (const uint32_t group : {1u, 4u}) {
          for (const uint32_t past : {0u, 200u}) {
            const bool is_long = n_q == 130 || (n_q == 33 && group == 4 && past != 0);
            if (test::few_cases() && is_long && (type != ElementType::kF16 || past == 0)) continue;
            if (test::emulated() && n_q == 130) continue;
            CAPTURE(n_q);
            CAPTURE(group);
            CAPTURE(past);
            const AttentionShape shape = test::prefill_shape(group, 64, 64, type);
            const test::StoredKv kv(shape, past + n_q, 101);
            const auto pos = test::ascending(n_q, past);
            check_against_reference(shape, n_q, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 102);
          }
        }
      }
    }
  }

  TEST_CASE("every head_dim and group size equals the formula") {
    for (const uint32_t head_dim : {8u, 36u, 48u, 80u, 96u, 100u, 112u, 128u, 256u}) {
      for (const uint32_t group : {3u, 8u}) {
        if (test::few_cases() && group == 8 && head_dim % 16 == 0) continue;
        CAPTURE(head_dim);
        const AttentionShape shape =
            test::prefill_shape(group, head_dim, head_dim == 96 ? 64 : head_dim, ElementType::kF16);
        const test::StoredKv kv(shape, 141, 111);
        const auto pos = test::ascending(21, 120);
        check_against_reference(shape, 21, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 112);
      }
    }
  }

  TEST_CASE("distance bounds hide what is too near and too far") {
    const AttentionShape shape = test::prefill_shape(2, 16, 16, ElementType::kF32);
    const test::StoredKv kv(shape, 600, 121);
    const auto pos = test::ascending(300, 300);
    for (const auto& [near, far] : {std::pair{0u, 1u},
                                    {0u, 64u},
                                    {10u, 300u},
                                    {64u, UINT32_MAX},
                                    {1000u, UINT32_MAX},
                                    {5u, 5u}}) {
      CAPTURE(near);
      CAPTURE(far);
      check_against_reference(shape, 300, {pos.data(), near, far}, {&kv.rows, 1}, 122);
    }
  }

  TEST_CASE("queries out of order, keys with a position table, holes and token lists") {
    const AttentionShape shape = test::prefill_shape(3, 32, 32, ElementType::kBF16);
    const test::StoredKv a(shape, 140, 131);
    const test::StoredKv b(shape, 60, 133);
    std::vector<uint32_t> table = test::ascending(140, 50);
    std::swap(table[3], table[100]);
    for (size_t t = 60; t < 140; ++t) table[t] += 17;
    std::vector<uint32_t> tokens = {1, 2, 9, 30, 59};
    KvRows first = a.rows;
    first.pos = table.data();
    KvRows second = b.rows;
    second.first_pos = 300;
    second.tokens = tokens.data();
    second.end = 5;
    std::vector<uint32_t> pos = {400, 20, 130, 52, 310, 153, 331};
    check_against_reference(shape, pos.size(), {pos.data(), 0, UINT32_MAX},
                            std::vector<KvRows>{first, second}, 135);
    check_against_reference(shape, pos.size(), {pos.data(), 0, 90},
                            std::vector<KvRows>{second, first}, 136);
  }

  TEST_CASE("log-weights, softcap and no positions at all") {
    AttentionShape shape = test::prefill_shape(3, 32, 32, ElementType::kF16);
    shape.softcap = 20.0f;
    const test::StoredKv kv(shape, 150, 141, 3.0f);
    auto weights = test::random_floats(150 * 3, 1.0f, 142);
    for (size_t i = 0; i < weights.size(); i += 5) {
      weights[i] = -std::numeric_limits<float>::infinity();
    }
    KvRows rows = kv.rows;
    rows.log_weight = weights.data();
    rows.weight_width = 3;
    rows.weight_row_stride = 3;
    check_against_reference(shape, 20, {}, {&rows, 1}, 143);
    const auto pos = test::ascending(20, 130);
    check_against_reference(shape, 20, {pos.data(), 0, UINT32_MAX}, {&rows, 1}, 144);
  }

  TEST_CASE("a query before all keys, or without keys, gets (0, -inf)") {
    const AttentionShape shape = test::prefill_shape(2, 16, 16, ElementType::kF32);
    const test::StoredKv kv(shape, 40, 151);
    KvRows rows = kv.rows;
    rows.first_pos = 100;
    const std::vector<uint32_t> pos = {3, 99, 100, 500};
    check_against_reference(shape, 4, {pos.data(), 0, UINT32_MAX}, {&rows, 1}, 152);
    check_against_reference(shape, 4, {pos.data(), 0, UINT32_MAX}, {}, 153);
  }

  TEST_CASE("sharp logits stay accurate") {
    const AttentionShape shape = test::prefill_shape(4, 64, 64, ElementType::kF32);
    const test::StoredKv kv(shape, 300, 161, 6.0f);
    const auto pos = test::ascending(40, 260);
    check_against_reference(shape, 40, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 162);
  }
}
