// Attention mass against the double-precision oracle.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_mass.h"

#include <limits>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::AttentionShape;
using kernels::ElementType;
using kernels::KvRows;

struct Case {
  AttentionShape shape;
  std::vector<KvRows> items;
  std::vector<uint32_t> pos;
  size_t n_keys = 0;
};

AttentionShape make_shape(ElementType type) {
  AttentionShape shape;
  shape.group_size = 3;
  shape.head_dim = kernels::group_elements(type) == 1 ? 40 : 96;
  shape.v_dim = 8;
  shape.k_type = type;
  shape.v_type = ElementType::kF32;
  shape.softmax_scale = 0.3f;
  return shape;
}

// The mass of every key per query head, [key][group_size], from the oracle's own lse.
void check_case(const Case& c, uint32_t seed) {
  const size_t group = c.shape.group_size;
  const size_t n_q = c.pos.size();
  const kernels::PositionMask mask{c.pos.data(), 0, 200};
  const auto q = test::random_floats(n_q * group * c.shape.head_dim, 1.0f, seed);
  std::vector<double> expected(c.n_keys * group);
  std::vector<float> lse(n_q * group);
  for (size_t i = 0; i < n_q; ++i) {
    std::vector<double> o(group * c.shape.v_dim);
    std::vector<double> exact(group);
    std::vector<double> mass(group * c.n_keys);
    const float* qi = q.data() + i * group * c.shape.head_dim;
    kernels::reference::attention(c.shape, qi, i, mask, c.items, o.data(), exact.data());
    kernels::reference::attention_mass(c.shape, qi, i, mask, c.items, exact.data(), mass.data());
    for (size_t g = 0; g < group; ++g) {
      lse[i * group + g] = static_cast<float>(exact[g]);
      for (size_t t = 0; t < c.n_keys; ++t) expected[t * group + g] += mass[g * c.n_keys + t];
    }
  }
  std::vector<double> summed(c.n_keys);
  for (size_t i = 0; i < expected.size(); ++i) summed[i / group] += expected[i];
  test::for_each_simd_target([&] {
    test::Scratch scratch(kernels::attention_mass_scratch_bytes(c.shape, n_q));
    const kernels::MassQueries queries{q.data(), lse.data(), n_q, group * c.shape.head_dim,
                                       group,    mask};
    std::vector<float> value(c.n_keys * group, 0.0f);
    kernels::attention_mass(c.shape, queries, c.items, group, value.data(), scratch.get());
    test::check_close(value, expected, test::kAttentionTolerance);
    std::vector<float> sum(c.n_keys, 0.0f);
    kernels::attention_mass(c.shape, queries, c.items, 1, sum.data(), scratch.get());
    test::check_close(sum, summed, test::kAttentionTolerance);
  });
}

}  // namespace

TEST_SUITE("kernels/attention_mass") {
  TEST_CASE("the mass of causal queries equals the formula") {
    for (const ElementType type : test::kElementTypes) {
      Case c{make_shape(type), {}, {}, 300};
      const test::StoredKv kv(c.shape, 300, 201);
      c.items = {kv.rows};
      for (uint32_t i = 0; i < 33; ++i) c.pos.push_back(i < 3 ? 40 * i : 267 + i);
      check_case(c, 202);
    }
  }

  TEST_CASE("any number of queries, alone and in panels, in any order") {
    for (const size_t n_q : {1u, 7u, 15u, 16u, 31u, 32u, 65u, 100u}) {
      CAPTURE(n_q);
      Case c{make_shape(ElementType::kF16), {}, {}, 333};
      const test::StoredKv kv(c.shape, 333, 241);
      c.items = {kv.rows};
      for (size_t i = 0; i < n_q; ++i) c.pos.push_back(static_cast<uint32_t>(i * 37 % 340));
      check_case(c, 242);
    }
  }

  TEST_CASE("weights and a softcap enter the mass of many queries") {
    Case c{make_shape(ElementType::kBF16), {}, {}, 140};
    c.shape.softcap = 5.0f;
    const test::StoredKv kv(c.shape, 140, 251);
    auto weights = test::random_floats(140 * 3, 1.0f, 252);
    for (size_t i = 0; i < weights.size(); i += 11)
      weights[i] = -std::numeric_limits<float>::infinity();
    c.items = {kv.rows};
    c.items[0].log_weight = weights.data();
    c.items[0].weight_width = 3;
    c.items[0].weight_row_stride = 3;
    for (uint32_t i = 0; i < 45; ++i) c.pos.push_back(95 + i);
    check_case(c, 253);
  }

  TEST_CASE("weights, token lists and a softcap enter the mass as they enter the softmax") {
    Case c{make_shape(ElementType::kBF16), {}, {160, 155, 40}, 135};
    c.shape.softcap = 5.0f;
    const test::StoredKv kv(c.shape, 160, 211);
    const std::vector<uint32_t> tokens = {133, 140, 159, 158, 150};
    auto weights = test::random_floats(15, 1.0f, 212);
    weights[4] = -std::numeric_limits<float>::infinity();
    KvRows head = kv.rows;
    head.end = 130;
    KvRows list = kv.rows;
    list.tokens = tokens.data();
    list.end = 5;
    list.log_weight = weights.data();
    list.weight_width = 3;
    list.weight_row_stride = 3;
    c.items = {head, list};
    check_case(c, 213);
  }

  TEST_CASE("the masses of a query head sum to one") {
    const AttentionShape shape = make_shape(ElementType::kF32);
    const test::StoredKv kv(shape, 500, 221);
    const auto q = test::random_floats(3 * 40, 1.0f, 222);
    std::vector<double> o(24);
    std::vector<double> lse(3);
    kernels::reference::attention(shape, q.data(), 0, {}, {&kv.rows, 1}, o.data(), lse.data());
    const std::vector<float> lse_f(lse.begin(), lse.end());
    test::for_each_simd_target([&] {
      test::Scratch scratch(kernels::attention_mass_scratch_bytes(shape, 1));
      std::vector<float> value(500 * 3, 0.0f);
      kernels::attention_mass(shape, {q.data(), lse_f.data(), 1, 120, 3, {}}, {&kv.rows, 1}, 3,
                              value.data(), scratch.get());
      for (size_t g = 0; g < 3; ++g) {
        double sum = 0;
        for (size_t t = 0; t < 500; ++t) sum += value[t * 3 + g];
        CHECK(sum == doctest::Approx(1.0).epsilon(1e-5));
      }
    });
  }

  TEST_CASE("a query that saw nothing adds nothing") {
    const AttentionShape shape = make_shape(ElementType::kF32);
    const test::StoredKv kv(shape, 20, 231);
    for (const size_t n_q : {1u, 20u}) {
      const auto q = test::random_floats(n_q * 3 * 40, 1.0f, 232);
      const std::vector<float> lse(n_q * 3, -std::numeric_limits<float>::infinity());
      test::for_each_simd_target([&] {
        test::Scratch scratch(kernels::attention_mass_scratch_bytes(shape, n_q));
        std::vector<float> value(20, 0.25f);
        kernels::attention_mass(shape, {q.data(), lse.data(), n_q, 120, 3, {}}, {&kv.rows, 1}, 1,
                                value.data(), scratch.get());
        for (float x : value) CHECK(x == 0.25f);
      });
    }
  }
}
