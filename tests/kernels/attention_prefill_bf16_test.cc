// Prefill attention in bf16 against the double-precision oracle: once where only P is rounded, and
// everything else can be asked for closely, once with all operands rounded.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_prefill_bf16.h"

#include <hwy/highway.h>

#include <array>
#include <limits>

#include "kernels/simd_target.h"
#include "tests/kernels/prefill_call.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::AttentionShape;
using kernels::ElementType;
using kernels::KvRows;
using kernels::PositionMask;

constexpr double kUnit = 0x1p-8;  // half the step of bf16 at 1: its unit roundoff

// Targets and element types that have the kernel run it; the others must say that they have not.
// A pinned target goes without the tiles of AMX, so they have a turn of their own.
template <class Check>
void for_each_bf16_target(const AttentionShape& shape, const Check& check) {
  const auto is_half = [](ElementType type) {
    return type == ElementType::kF16 || type == ElementType::kBF16;
  };
  test::for_each_simd_target([&] {
#if HWY_ARCH_X86
    const bool wide = (hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX3_DL)) != 0;
    const bool has = wide && __builtin_cpu_supports("avx512bf16");
#else
    const bool has = false;
#endif
    const bool takes = has && is_half(shape.k_type) && is_half(shape.v_type);
    REQUIRE(kernels::has_attention_prefill_bf16(shape) == takes);
    if (takes) check();
  });
  if (!kernels::uses_bf16_tiles() || !kernels::has_attention_prefill_bf16(shape)) return;
  INFO("with tiles");
  check();
}

void round_to_bf16(std::vector<float>& values) {
  for (float& x : values)
    x = static_cast<float>(kernels::reference::round_to(x, ElementType::kBF16));
}

// K and V that both bf16 and f16 hold.
struct ExactKv : test::StoredKv {
  ExactKv(const AttentionShape& shape, size_t n_tokens, uint32_t seed, float scale = 1.0f)
      : StoredKv(shape, n_tokens, seed, scale) {
    const auto store = [&](std::vector<uint8_t>& to, size_t width, size_t stride, float by,
                           ElementType type, uint32_t from) {
      auto values = test::random_floats(n_tokens * width, by, from);
      round_to_bf16(values);
      to = test::store_rows(values, width, stride, type);
    };
    store(k, shape.head_dim, rows.k_token_stride, scale, shape.k_type, seed);
    store(v, shape.v_dim, rows.v_token_stride, 1.0f, shape.v_type, seed + 1);
    rows.k = k.data();
    rows.v = v.data();
  }
};

void prefill(const AttentionShape& shape, const kernels::QueryTile& queries,
             std::span<const KvRows> items, void* scratch) {
  kernels::attention_prefill_bf16(shape, queries, items, scratch, kernels::uses_bf16_tiles());
}

// A scale of a power of two and operands that bf16 holds: logits and lse are those of f32, and o is
// off by the rounding of P alone, of random sign and at most kUnit * sum_t p_t |v_t|.
void check_exact_operands(AttentionShape shape, size_t n_q, const PositionMask& mask,
                          std::span<const KvRows> items, uint32_t seed) {
  shape.softmax_scale = 0.125f;
  test::PrefillCall call(shape, n_q, mask, items, seed);
  round_to_bf16(call.q);
  for_each_bf16_target(shape, [&] {
    const auto& expected = call.expected();
    const auto got = call.run(kernels::attention_prefill_bf16_scratch_bytes, prefill);
    test::check_close(got.lse, expected.lse, 1e-5);
    test::check_close(got.o, expected.o, kUnit);
  });
}

// The bound of attention_prefill_bf16.h, for contiguous keys and causal queries at the end.
struct Bound {
  double o, lse;
};
Bound bound_of(const test::PrefillCall& call, const KvRows& rows, size_t query, size_t head) {
  const AttentionShape& shape = call.shape;
  const float* q = call.q.data() + query * call.q_stride() + head * shape.head_dim;
  double logit = 0, largest = 0;
  for (size_t t = 0; t <= call.mask.q_pos[query]; ++t) {
    const auto* k = static_cast<const uint8_t*>(rows.k) + t * rows.k_token_stride;
    const auto* v = static_cast<const uint8_t*>(rows.v) + t * rows.v_token_stride;
    double products = 0;
    for (size_t d = 0; d < shape.head_dim; ++d)
      products += std::fabs(q[d] * kernels::reference::element(k, d, shape.k_type));
    logit = std::fmax(logit, products);
    for (size_t d = 0; d < shape.v_dim; ++d)
      largest = std::fmax(largest, std::fabs(kernels::reference::element(v, d, shape.v_type)));
  }
  const double k_unit = shape.k_type == ElementType::kBF16 ? 0 : kUnit;
  const double v_unit = shape.v_type == ElementType::kBF16 ? 0 : kUnit;
  logit *= shape.softmax_scale * (kUnit + k_unit);
  return {(2 * logit + kUnit + v_unit) * largest, logit};
}

}  // namespace

TEST_SUITE("kernels/attention_prefill_bf16") {
  TEST_CASE("of all types and targets those that have it say so, and run") {
    for (const ElementType k : test::kElementTypes) {
      for (const ElementType v : test::kElementTypes) {
        AttentionShape shape = test::prefill_shape(2, 32, 32, k);
        shape.v_type = v;
        const test::StoredKv kv(shape, 9, 7);
        const auto pos = test::ascending(3, 6);
        const test::PrefillCall call(shape, 3, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 8);
        for_each_bf16_target(shape, [&] {
          const auto& expected = call.expected();
          const auto got = call.run(kernels::attention_prefill_bf16_scratch_bytes, prefill);
          test::check_close(got.lse, expected.lse, 0.01);
        });
      }
    }
  }

  TEST_CASE("a causal chunk at the end of its keys equals the formula") {
    for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
      for (const size_t n_q : {1, 7, 33, 130}) {
        for (const uint32_t group : {1u, 4u, 7u}) {
          for (const uint32_t past : {0u, 127u, 200u}) {
            const bool is_widest = group == 7 && past == 127;
            if (test::few_cases() && n_q == 130 && (!is_widest || type != ElementType::kF16))
              continue;
            if (test::few_cases() && n_q == 33 && (group == 4 || past == 200)) continue;
            CAPTURE(n_q);
            CAPTURE(group);
            CAPTURE(past);
            const AttentionShape shape = test::prefill_shape(group, 64, 64, type);
            const ExactKv kv(shape, past + n_q, 101);
            const auto pos = test::ascending(n_q, past);
            check_exact_operands(shape, n_q, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 102);
          }
        }
      }
    }
  }

  TEST_CASE("every head_dim, v_dim and group size equals the formula") {
    for (const uint32_t head_dim :
         {1u, 8u, 33u, 36u, 48u, 80u, 96u, 100u, 112u, 128u, 192u, 256u}) {
      for (const uint32_t group : {1u, 3u, 8u}) {
        for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
          if (test::few_cases() && (group == 8) != (type == ElementType::kBF16)) continue;
          if (test::few_cases() && group == 8 && head_dim % 64 == 0) continue;
          CAPTURE(head_dim);
          CAPTURE(group);
          const AttentionShape shape =
              test::prefill_shape(group, head_dim, head_dim == 96 ? 65 : head_dim, type);
          const ExactKv kv(shape, 141, 111);
          const auto pos = test::ascending(21, 120);
          check_exact_operands(shape, 21, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 112);
        }
      }
    }
  }

  TEST_CASE("distance bounds hide what is too near and too far, at odd keys, too") {
    const AttentionShape shape = test::prefill_shape(2, 16, 16, ElementType::kF16);
    const ExactKv kv(shape, 601, 121);
    const auto pos = test::ascending(301, 300);
    for (const auto& [near, far] : {std::pair{0u, 1u},
                                    {0u, 64u},
                                    {0u, 77u},
                                    {10u, 300u},
                                    {63u, UINT32_MAX},
                                    {1000u, UINT32_MAX},
                                    {5u, 5u}}) {
      CAPTURE(near);
      CAPTURE(far);
      check_exact_operands(shape, 301, {pos.data(), near, far}, {&kv.rows, 1}, 122);
    }
  }

  TEST_CASE("queries out of order, keys with a position table, holes and token lists") {
    const AttentionShape shape = test::prefill_shape(3, 32, 32, ElementType::kBF16);
    const ExactKv a(shape, 140, 131);
    const ExactKv b(shape, 60, 133);
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
    check_exact_operands(shape, pos.size(), {pos.data(), 0, UINT32_MAX},
                         std::vector<KvRows>{first, second}, 135);
    check_exact_operands(shape, pos.size(), {pos.data(), 0, 90}, std::vector<KvRows>{second, first},
                         136);
  }

  TEST_CASE("log-weights, softcap and no positions at all") {
    AttentionShape shape = test::prefill_shape(3, 32, 32, ElementType::kF16);
    shape.softcap = 20.0f;
    const ExactKv kv(shape, 151, 141, 3.0f);
    auto weights = test::random_floats(151 * 3, 1.0f, 142);
    for (size_t i = 0; i < weights.size(); i += 5)
      weights[i] = -std::numeric_limits<float>::infinity();
    KvRows rows = kv.rows;
    rows.log_weight = weights.data();
    rows.weight_width = 3;
    rows.weight_row_stride = 3;
    check_exact_operands(shape, 20, {}, {&rows, 1}, 143);
    const auto pos = test::ascending(20, 131);
    check_exact_operands(shape, 20, {pos.data(), 0, UINT32_MAX}, {&rows, 1}, 144);
  }

  TEST_CASE("a query before all keys, or without keys, gets (0, -inf)") {
    const AttentionShape shape = test::prefill_shape(2, 16, 16, ElementType::kF16);
    const ExactKv kv(shape, 40, 151);
    KvRows rows = kv.rows;
    rows.first_pos = 100;
    const std::vector<uint32_t> pos = {3, 99, 100, 500};
    check_exact_operands(shape, 4, {pos.data(), 0, UINT32_MAX}, {&rows, 1}, 152);
    check_exact_operands(shape, 4, {pos.data(), 0, UINT32_MAX}, {}, 153);
  }

  TEST_CASE("sharp logits, from -500 to 500, and the last of all keys") {
    for (const float scale : {6.0f, 60.0f}) {
      const AttentionShape shape = test::prefill_shape(4, 64, 64, ElementType::kBF16);
      const ExactKv kv(shape, 300, 161, scale);
      const auto pos = test::ascending(41, 259);
      check_exact_operands(shape, 41, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 162);
    }
  }

  TEST_CASE("NaN in a key is seen in what attends to it, and nowhere else") {
    const AttentionShape shape = test::prefill_shape(1, 32, 32, ElementType::kBF16);
    ExactKv kv(shape, 40, 171);
    reinterpret_cast<uint16_t*>(kv.k.data() + 20 * kv.rows.k_token_stride)[5] = 0x7fc0;
    const auto pos = test::ascending(40, 0);
    const test::PrefillCall call(shape, 40, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 172);
    for_each_bf16_target(shape, [&] {
      const auto got = call.run(kernels::attention_prefill_bf16_scratch_bytes, prefill);
      for (size_t i = 0; i < 40; ++i) {
        CHECK(std::isnan(got.o[i * 32]) == (i >= 20));
        CHECK(std::isnan(got.lse[i]) == (i >= 20));
      }
    });
  }

  TEST_CASE("a query's bits are its own, whatever queries and keys share the call") {
    const AttentionShape shape = test::prefill_shape(3, 64, 48, ElementType::kF16);
    const size_t n_q = 90, past = 211;
    const test::StoredKv kv(shape, past + n_q, 191);
    const auto pos = test::ascending(n_q, past);
    for (const uint32_t far : {UINT32_MAX, 150u}) {
      CAPTURE(far);
      const test::PrefillCall all(shape, n_q, {pos.data(), 0, far}, {&kv.rows, 1}, 192);
      for_each_bf16_target(shape, [&] {
        const auto run = [](const test::PrefillCall& call) {
          return call.run(kernels::attention_prefill_bf16_scratch_bytes, prefill);
        };
        const auto together = run(all);
        for (const size_t i : {0u, 1u, 12u, 44u, 89u}) {
          CAPTURE(i);
          KvRows seen = kv.rows;
          seen.end = static_cast<uint32_t>(past + i + 1);  // without what lies behind
          test::PrefillCall alone(shape, 1, {pos.data() + i, 0, far}, {&seen, 1}, 192);
          std::copy_n(all.q.begin() + static_cast<ptrdiff_t>(i * all.q_stride()), all.q_stride(),
                      alone.q.begin());
          const auto got = run(alone);
          CHECK(std::equal(got.o.begin(), got.o.end(),
                           together.o.begin() + static_cast<ptrdiff_t>(i * got.o.size())));
          CHECK(std::equal(got.lse.begin(), got.lse.end(),
                           together.lse.begin() + static_cast<ptrdiff_t>(i * got.lse.size())));
        }
      });
    }
  }

  // The errors of the operands have random signs: their root mean square is 0.0003 to 0.0008 of the
  // largest |o|, a tenth to a fifth of a rounding.
  TEST_CASE("with all operands rounded the error keeps the stated bound, and is far below it") {
    for (const uint32_t head_dim : {64u, 80u, 128u, 256u}) {
      for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
        CAPTURE(head_dim);
        const AttentionShape shape = test::prefill_shape(3, head_dim, head_dim, type);
        const size_t n_q = 37, past = 264;
        const test::StoredKv kv(shape, past + n_q, 181);
        const auto pos = test::ascending(n_q, past);
        const test::PrefillCall call(shape, n_q, {pos.data(), 0, UINT32_MAX}, {&kv.rows, 1}, 182);
        for_each_bf16_target(shape, [&] {
          const auto& expected = call.expected();
          const auto got = call.run(kernels::attention_prefill_bf16_scratch_bytes, prefill);
          double worst_o = 0, worst_lse = 0, squares = 0;
          for (size_t i = 0; i < n_q * 3; ++i) {
            const Bound bound = bound_of(call, kv.rows, i / 3, i % 3);
            worst_lse = std::fmax(worst_lse, std::fabs(got.lse[i] - expected.lse[i]) / bound.lse);
            for (size_t j = i * head_dim; j < (i + 1) * head_dim; ++j) {
              const double error = std::fabs(got.o[j] - expected.o[j]);
              worst_o = std::fmax(worst_o, error / bound.o);
              squares += error * error;
            }
          }
          const double rms = std::sqrt(squares / static_cast<double>(got.o.size()));
          CHECK(worst_o <= 1.0);
          CHECK(worst_lse <= 1.0);
          CHECK(rms <= 0.25 * kUnit * test::largest(expected.o));
        });
      }
    }
  }
}
