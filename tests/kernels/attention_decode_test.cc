// Decode attention against the double-precision oracle on the same stored rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_decode.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/attention_state.h"
#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::AttentionShape;
using kernels::ElementType;
using kernels::KvRows;

// f32 sums of up to 4097 products of unit variance, exp to 1.2e-7: about 1e-6; 1e-5 is the promise.
// Of integers, with the same steps of q, and of weights where those have 8 bits, over random
// numbers: 1.7e-4 of the largest output was seen.
constexpr double kIntegerTolerance = 2.5e-4;
// Weights of 8 bits near the middle of two steps, which may take either, each group of 32 elements.
constexpr double kEitherSteps = 4.0;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Result {
  std::vector<float> o, lse;
};

Result run(const AttentionShape& shape, const std::vector<float>& q,
           std::span<const KvRows> items) {
  Result r;
  r.o.assign(shape.group_size * shape.v_dim, 7.0f);
  r.lse.assign(shape.group_size, 7.0f);
  test::Scratch scratch(kernels::attention_decode_scratch_bytes(shape, 1));
  const kernels::DecodeHead head{q.data(), items, r.o.data(), r.lse.data()};
  kernels::attention_decode(shape, std::span(&head, 1), scratch.get());
  return r;
}

AttentionShape with_integers(AttentionShape shape) {
  shape.in_integers = true;
  return shape;
}

bool has_integers() { return kernels::attention_decode_weight_steps(ElementType::kQ8_0) > 0; }

bool has_groups(const AttentionShape& shape) {
  return std::max(kernels::group_elements(shape.k_type), kernels::group_elements(shape.v_type)) > 1;
}

struct Expected {
  std::vector<double> o, lse;
  // Of each output: a step of weights times the most steps of a value, or 1.
  std::vector<double> step;
};

Expected expected(const AttentionShape& shape, const std::vector<float>& q,
                  std::span<const KvRows> items) {
  const size_t n = shape.group_size * shape.v_dim;
  Expected e{std::vector<double>(n), std::vector<double>(shape.group_size), std::vector<double>(n)};
  kernels::reference::attention(shape, q.data(), 0, {}, items, e.o.data(), e.lse.data());
  return e;
}

// With q as integers over quantised keys take it: 127 steps to the largest of 32 elements, which
// are scaled before. Zero where the steps are too small for f32.
void round_query(AttentionShape& shape, std::vector<float>& q) {
  for (size_t group = 0; group < q.size(); group += 32) {
    float largest = 0.0f;
    for (size_t i = group; i < group + 32; ++i) {
      q[i] *= shape.softmax_scale;
      largest = std::max(largest, std::fabs(q[i]));
    }
    const float per_step = 127.0f / largest;
    for (size_t i = group; i < group + 32; ++i)
      q[i] = std::isfinite(per_step) ? std::nearbyint(q[i] * per_step) / per_step : 0.0f;
  }
  shape.softmax_scale = 1.0f;
}

// V rows of `items`, in their order.
std::vector<const uint8_t*> value_rows(std::span<const KvRows> items) {
  std::vector<const uint8_t*> rows;
  for (const KvRows& item : items)
    for (uint32_t row = item.begin; row < item.end; ++row)
      rows.push_back(static_cast<const uint8_t*>(item.v) +
                     (item.tokens ? item.tokens[row] : row) * item.v_token_stride);
  return rows;
}

// e.o[at + i] += sum of weights[r] * element i of rows[r], the group of 32 from `column` on, with
// the products of weights and scales in n_steps to the largest weight times the largest scale; 0:
// as they are.
void add_in_steps(const double* weights, std::span<const uint8_t* const> rows, size_t column,
                  ElementType type, unsigned n_steps, Expected& e, size_t at) {
  const size_t group = kernels::row_bytes(type, column);
  double largest_weight = 0.0, largest_scale = 0.0;
  std::vector<double> scales;
  for (size_t r = 0; r < rows.size(); ++r) {
    scales.push_back(kernels::reference::element(rows[r] + group, 0, ElementType::kF16));
    largest_weight = std::max(largest_weight, weights[r]);
    largest_scale = std::max(largest_scale, std::fabs(scales[r]));
  }
  const double step = n_steps ? largest_weight * largest_scale / n_steps : 0.0;
  if (n_steps && step == 0.0) return;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (scales[r] == 0.0) continue;
    const double weight =
        n_steps ? std::nearbyint(weights[r] * scales[r] / step) * step / scales[r] : weights[r];
    for (size_t i = 0; i < 32; ++i) {
      const double value = kernels::reference::element(rows[r], column + i, type);
      e.o[at + i] += weight * value;
      e.step[at + i] = std::max({e.step[at + i], step, step * std::fabs(value / scales[r])});
    }
  }
}

bool has_negative_scale(std::span<const uint8_t* const> rows, size_t width, ElementType type) {
  const size_t group = kernels::row_bytes(type, 32), bytes = kernels::row_bytes(type, width);
  for (const uint8_t* row : rows)
    for (size_t at = 0; at < bytes; at += group)
      if (row[at + 1] & 0x80) return true;
  return false;
}

// With q, and weights where they take 8 bits, as integers take them.
Expected expected_of_steps(AttentionShape shape, std::vector<float> q,
                           std::span<const KvRows> items) {
  if (kernels::group_elements(shape.k_type) > 1) round_query(shape, q);
  Expected e = expected(shape, q, items);
  const unsigned n_steps = kernels::attention_decode_weight_steps(shape.v_type);
  if (n_steps == 0 || n_steps > 255) return e;
  const std::vector<const uint8_t*> rows = value_rows(items);
  std::vector<double> weights(shape.group_size * rows.size());
  kernels::reference::attention_mass(shape, q.data(), 0, {}, items, e.lse.data(), weights.data());
  std::fill(e.o.begin(), e.o.end(), 0.0);
  const auto part = [&](size_t first, size_t n) {
    return std::span(rows).subspan(first, std::min(n, rows.size() - first));
  };
  for (size_t r = 0; r < rows.size(); r += 32) {
    const bool rounds =
        n_steps < 255 || !has_negative_scale(part(r / 128 * 128, 128), shape.v_dim, shape.v_type);
    for (size_t g = 0; g < shape.group_size; ++g)
      for (size_t column = 0; column < shape.v_dim; column += 32)
        add_in_steps(&weights[g * rows.size() + r], part(r, 32), column, shape.v_type,
                     rounds ? n_steps : 0, e, g * shape.v_dim + column);
  }
  return e;
}

bool is_close(float actual, const Expected& of_steps, size_t i) {
  const double most =
      kIntegerTolerance * test::largest(of_steps.o) + kEitherSteps * of_steps.step[i];
  return std::fabs(actual - of_steps.o[i]) <= most;
}

void check_against_reference(const AttentionShape& shape, const std::vector<float>& q,
                             std::span<const KvRows> items) {
  const Expected exact = expected(shape, q, items);
  test::for_each_simd_target([&] {
    const Result r = run(shape, q, items);
    test::check_close(r.o, exact.o, test::kAttentionTolerance);
    test::check_close(r.lse, exact.lse, test::kAttentionTolerance);
    const Result in_integers = run(with_integers(shape), q, items);
    if (!has_groups(shape) || !has_integers()) {
      CHECK(in_integers.o == r.o);
      CHECK(in_integers.lse == r.lse);
      return;
    }
    const Expected of_steps = expected_of_steps(shape, q, items);
    for (size_t i = 0; i < of_steps.o.size(); ++i) CHECK(is_close(in_integers.o[i], of_steps, i));
    test::check_close(in_integers.lse, of_steps.lse, kIntegerTolerance);
  });
}

AttentionShape make_shape(uint32_t group_size, uint32_t head_dim, ElementType type) {
  AttentionShape shape;
  shape.group_size = group_size;
  shape.head_dim = head_dim;
  shape.v_dim = head_dim;
  shape.k_type = type;
  shape.v_type = type;
  shape.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return shape;
}

// Random steps, all of the type's, under scales from the smallest to the largest, of both signs or
// of none, and 0.
void fill_wildly(std::vector<uint8_t>& rows, size_t stride, size_t width, ElementType type,
                 bool has_signs) {
  const size_t group = kernels::row_bytes(type, 32);
  std::mt19937 random(7);
  for (size_t row = 0; row < rows.size(); row += stride) {
    for (size_t at = 0; at < kernels::row_bytes(type, width); at += group) {
      for (size_t i = 2; i < group; ++i) rows[row + at + i] = static_cast<uint8_t>(random());
      const auto sign = static_cast<uint16_t>(has_signs ? random() % 2 << 15 : 0);
      const uint16_t bits[] = {0, 1, 0x7bff, static_cast<uint16_t>(random() % 0x7c00)};
      const auto scale = static_cast<uint16_t>(bits[random() % 4] | sign);
      std::memcpy(&rows[row + at], &scale, 2);
    }
  }
}

}  // namespace

TEST_SUITE("kernels/attention_decode") {
  TEST_CASE("every length, element type and group size equals the formula") {
    for (const ElementType type : test::kElementTypes) {
      for (const size_t n : {0, 1, 15, 16, 17, 127, 128, 129, 4097}) {
        for (const uint32_t group : {1u, 3u, 4u, 8u}) {
          if (n == 4097 && (group != 4 || (test::few_cases() && type != ElementType::kF16)))
            continue;
          CAPTURE(static_cast<int>(type));
          CAPTURE(n);
          CAPTURE(group);
          const AttentionShape shape = make_shape(group, 64, type);
          const test::StoredKv kv(shape, n, 11);
          const auto q = test::random_floats(group * 64, 1.0f, 12);
          check_against_reference(shape, q, {&kv.rows, 1});
        }
      }
    }
  }

  TEST_CASE("every head_dim equals the formula, also where it is no multiple of a vector") {
    for (const uint32_t head_dim :
         {1u, 8u, 36u, 48u, 64u, 80u, 96u, 100u, 112u, 128u, 192u, 256u}) {
      for (const ElementType type : test::kElementTypes) {
        if (!test::can_store(type, head_dim)) continue;
        CAPTURE(head_dim);
        AttentionShape shape = make_shape(5, head_dim, type);
        shape.v_dim = head_dim == 192 ? 128 : head_dim;  // latent attention: K and V differ
        const test::StoredKv kv(shape, 150, 21);
        const auto q = test::random_floats(5 * head_dim, 1.0f, 22);
        check_against_reference(shape, q, {&kv.rows, 1});
      }
    }
  }

  TEST_CASE("K and V may have different types") {
    AttentionShape shape = make_shape(4, 64, ElementType::kF16);
    shape.v_type = ElementType::kF32;
    const test::StoredKv kv(shape, 200, 31);
    check_against_reference(shape, test::random_floats(4 * 64, 1.0f, 32), {&kv.rows, 1});
  }

  TEST_CASE("quantised rows: any length, group of heads, number of groups and gap, mixed types") {
    using enum ElementType;
    const std::pair<ElementType, ElementType> types[] = {
        {kQ8_0, kQ4_0}, {kQ4_0, kQ8_0}, {kQ8_0, kF16}, {kF16, kQ4_0}, {kF32, kQ8_0}};
    for (const auto& [k_type, v_type] : types) {
      for (const uint32_t dim : {32u, 64u, 96u, 128u, 160u}) {
        for (const size_t n : {1u, 15u, 17u, 63u, 65u, 130u}) {
          for (const size_t gap : {0u, 2u}) {
            const uint32_t group = 1 + static_cast<uint32_t>(n + dim / 32) % 9;
            CAPTURE(static_cast<int>(k_type));
            CAPTURE(static_cast<int>(v_type));
            CAPTURE(dim);
            CAPTURE(n);
            CAPTURE(gap);
            CAPTURE(group);
            AttentionShape shape = make_shape(group, dim, k_type);
            shape.v_type = v_type;
            shape.v_dim = n % 2 ? dim : 96;
            const test::StoredKv kv(shape, n, 101, 1.0f, gap);
            check_against_reference(shape, test::random_floats(group * dim, 1.0f, 102),
                                    {&kv.rows, 1});
          }
        }
      }
    }
  }

  TEST_CASE("quantised rows behind each other, but for one of them") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const uint32_t dim : {64u, 128u}) {
        const AttentionShape shape = make_shape(4, dim, type);
        const test::StoredKv kv(shape, 80, 105, 1.0f, 0);
        for (const uint32_t elsewhere : {0u, 1u, 6u, 7u, 8u, 14u, 15u, 47u}) {
          CAPTURE(static_cast<int>(type));
          CAPTURE(dim);
          CAPTURE(elsewhere);
          std::vector<uint32_t> tokens(48);
          for (uint32_t i = 0; i < 48; ++i) tokens[i] = 3 + i;
          tokens[elsewhere] = 79;
          KvRows rows = kv.rows;
          rows.tokens = tokens.data();
          rows.end = 48;
          check_against_reference(shape, test::random_floats(4 * dim, 1.0f, 106), {&rows, 1});
        }
      }
    }
  }

  TEST_CASE("scales of any size and sign, zero groups and every step") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const auto& [k_is_wild, has_signs] :
           {std::pair(false, true), {false, false}, {true, true}}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(k_is_wild);
        CAPTURE(has_signs);
        AttentionShape shape = make_shape(6, 96, type);
        test::StoredKv kv(shape, 300, 111);
        fill_wildly(k_is_wild ? kv.k : kv.v,
                    k_is_wild ? kv.rows.k_token_stride : kv.rows.v_token_stride, 96, type,
                    has_signs);
        auto q = test::random_floats(6 * 96, 1.0f, 112);
        for (size_t i = 0; i < 96; ++i) q[2 * 96 + i] = 0.0f;
        for (size_t i = 0; i < 32; ++i) q[3 * 96 + 32 + i] *= 1e4f;  // an outlier of a query
        if (k_is_wild) shape.softmax_scale = 1e-7f;
        check_against_reference(shape, q, {&kv.rows, 1});
      }
    }
  }

  TEST_CASE("the largest steps of queries, keys and values overflow no sum") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const uint8_t byte : std::initializer_list<uint8_t>{0x00, 0x7f, 0x80, 0xff}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(byte);
        const AttentionShape shape = make_shape(3, 96, type);
        test::StoredKv kv(shape, 150, 115);
        const size_t group = kernels::row_bytes(type, 32);
        const uint16_t scale = 0x2c00;  // 1 / 16
        for (std::vector<uint8_t>* rows : {&kv.k, &kv.v}) {
          std::fill(rows->begin(), rows->end(), byte);
          const size_t stride = rows == &kv.k ? kv.rows.k_token_stride : kv.rows.v_token_stride;
          for (size_t row = 0; row < 150; ++row)
            for (size_t i = 0; i < 3; ++i)
              std::memcpy(rows->data() + row * stride + i * group, &scale, 2);
        }
        // Steps of 127, of -127, and of both in turn.
        std::vector<float> q(3 * 96);
        for (size_t i = 0; i < q.size(); ++i)
          q[i] = (i / 96 == 2 ? i : i / 96) % 2 ? 1.0f / 64 : -1.0f / 64;
        check_against_reference(shape, q, {&kv.rows, 1});
      }
    }
  }

  TEST_CASE("a scale that is no number is seen where its group is used, and nowhere else") {
    const uint16_t kNan = 0x7e00, kInfinity = 0x7c00, kNegativeInfinity = 0xfc00;
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const auto& [damage, in_integers] :
           {std::pair(kNan, false), std::pair(kNan, true), std::pair(kInfinity, false),
            std::pair(kInfinity, true), std::pair(kNegativeInfinity, false),
            std::pair(kNegativeInfinity, true)}) {
        AttentionShape shape = make_shape(5, 96, type);
        shape.in_integers = in_integers;
        const auto q = test::random_floats(5 * 96, 1.0f, 122);
        test::StoredKv kv(shape, 200, 121);
        const Expected exact = expected(shape, q, {&kv.rows, 1});
        const size_t group = kernels::row_bytes(type, 32);
        const std::vector<uint8_t> whole = kv.v;
        std::memcpy(kv.v.data() + 150 * kv.rows.v_token_stride + group, &damage, 2);
        test::for_each_simd_target([&] {
          const bool rounds = in_integers && has_integers();
          const Expected of_steps = rounds ? expected_of_steps(shape, q, {&kv.rows, 1}) : exact;
          const Result r = run(shape, q, {&kv.rows, 1});
          for (size_t i = 0; i < r.o.size(); ++i) {
            if (i % 96 / 32 == 1)
              CHECK_FALSE(std::isfinite(r.o[i]));
            else if (rounds)
              CHECK(is_close(r.o[i], of_steps, i));
            else
              CHECK(std::fabs(r.o[i] - exact.o[i]) <=
                    test::kAttentionTolerance * test::largest(exact.o));
          }
        });
        kv.v = whole;
        kv.rows.v = kv.v.data();
        if (damage != kNan) continue;  // an infinite logit may hide a key
        std::memcpy(kv.k.data() + 150 * kv.rows.k_token_stride + 2 * group, &damage, 2);
        test::for_each_simd_target([&] {
          for (const float x : run(shape, q, {&kv.rows, 1}).o) CHECK(std::isnan(x));
        });
      }
    }
  }

  TEST_CASE("what is no number in a query of quantised rows stays with its head") {
    AttentionShape shape = make_shape(6, 64, ElementType::kQ8_0);
    const test::StoredKv kv(shape, 100, 131);
    auto q = test::random_floats(6 * 64, 1.0f, 132);
    for (const bool in_integers : {false, true}) {
      for (const float damage : {std::numeric_limits<float>::quiet_NaN(), -kMinusInfinity}) {
        shape.in_integers = in_integers;
        test::for_each_simd_target([&] {
          const Result whole = run(shape, q, {&kv.rows, 1});
          auto damaged = q;
          damaged[1 * 64 + 40] = damage;
          const Result r = run(shape, damaged, {&kv.rows, 1});
          for (size_t i = 0; i < r.o.size(); ++i) {
            if (i / 64 == 1)
              CHECK(std::isnan(r.o[i]));
            else
              CHECK(r.o[i] == whole.o[i]);
          }
        });
      }
    }
  }

  TEST_CASE("quantised rows in pieces of items give the bits of one item") {
    for (const auto& [type, in_integers] :
         {std::pair(ElementType::kQ8_0, false), std::pair(ElementType::kQ8_0, true),
          std::pair(ElementType::kQ4_0, false), std::pair(ElementType::kQ4_0, true)}) {
      for (const size_t gap : {0, 2}) {  // without one, rows lie behind each other
        AttentionShape shape = make_shape(7, 128, type);
        shape.in_integers = in_integers;
        const test::StoredKv kv(shape, 333, 141, 1.0f, gap);
        const auto q = test::random_floats(7 * 128, 1.0f, 142);
        std::vector<uint32_t> tokens(333);
        for (uint32_t i = 0; i < 333; ++i) tokens[i] = i;
        KvRows head = kv.rows, middle = kv.rows, tail = kv.rows;
        head.end = middle.begin = 37;
        middle.end = tail.begin = 200;
        middle.tokens = tokens.data();
        test::for_each_simd_target([&] {
          const Result one = run(shape, q, {&kv.rows, 1});
          const Result three = run(shape, q, std::vector<KvRows>{head, middle, tail});
          CHECK(one.o == three.o);
          CHECK(one.lse == three.lse);
        });
      }
    }
  }

  TEST_CASE("integers are used where they are allowed and the CPU has them, and nowhere else") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      const AttentionShape shape = make_shape(4, 128, type);
      const test::StoredKv kv(shape, 200, 145);
      const auto q = test::random_floats(4 * 128, 1.0f, 146);
      test::for_each_simd_target([&] {
        const Result r = run(shape, q, {&kv.rows, 1});
        const bool same = run(with_integers(shape), q, {&kv.rows, 1}).o == r.o;
        CHECK(same != has_integers());
      });
    }
  }

  TEST_CASE("the steps of a query are 127 to the largest of its 32 elements") {
    AttentionShape shape = with_integers(make_shape(1, 64, ElementType::kQ8_0));
    shape.softmax_scale = 0.5f;
    // One key that is 127 at element 0 and 32, in steps of 1.
    std::vector<uint8_t> k(2 * 34, 0);
    const uint16_t one = 0x3c00;
    for (const size_t group : {0, 34}) {
      std::memcpy(&k[group], &one, 2);
      k[group + 2] = 127;
    }
    KvRows rows;
    rows.k = rows.v = k.data();
    rows.k_token_stride = rows.v_token_stride = k.size();
    rows.end = 1;
    std::vector<float> q(64, 0.0f);
    q[1] = q[33] = 254.0f;  // scaled: 127
    q[0] = 1.0f;            // half a step, to the even one: 0
    q[32] = 5.0f;           // two and a half: 2
    test::for_each_simd_target([&] {
      const float logit = run(shape, q, {&rows, 1}).lse[0];
      CHECK(logit == 127.0f * (has_integers() ? 2.0f : 3.0f));
    });
  }

  TEST_CASE("numbers near the ends of f32 do not leave it as integers") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const float size : {1e-44f, 1e-36f, 1e30f}) {
        CAPTURE(size);
        AttentionShape shape = make_shape(2, 64, type);
        shape.softmax_scale = 1.0f / 8;
        const test::StoredKv kv(shape, 40, 147);
        auto q = test::random_floats(2 * 64, 1.0f, 148);
        for (float& x : q) x *= size;
        if (size > 1.0f) shape.softmax_scale /= size;
        check_against_reference(shape, q, {&kv.rows, 1});
      }
    }
  }

  TEST_CASE("heads that take turns have the bits that each has alone") {
    for (const ElementType type : test::kElementTypes) {
      CAPTURE(static_cast<int>(type));
      const AttentionShape shape = with_integers(make_shape(3, 64, type));
      // More and fewer tiles than the others, a tile that items share, weights, and nothing.
      const size_t lengths[kernels::kMostDecodeHeads] = {300, 128, 0, 1, 129, 640, 257, 300};
      const auto weights = test::random_floats(300, 1.0f, 151);
      std::vector<test::StoredKv> kv;
      std::vector<std::vector<KvRows>> items(std::size(lengths));
      for (size_t h = 0; h < std::size(lengths); ++h) {
        kv.emplace_back(shape, lengths[h], static_cast<unsigned>(152 + h));
        KvRows first = kv[h].rows, second = kv[h].rows;
        first.end = second.begin = static_cast<uint32_t>(lengths[h] / 3);
        if (h == 7) first.log_weight = weights.data(), first.weight_width = 1;
        if (lengths[h]) items[h] = {first, second};
      }
      const size_t n = std::size(lengths), width = 3 * 64;
      const auto q = test::random_floats(n * width, 1.0f, 171);
      test::for_each_simd_target([&] {
        for (const size_t n_heads : {size_t{2}, size_t{5}, n}) {
          std::vector<float> o(n * width, 7.0f), lse(n * 3, 7.0f);
          std::vector<kernels::DecodeHead> heads;
          for (size_t h = n - n_heads; h < n; ++h)
            heads.push_back({&q[h * width], items[h], &o[h * width], &lse[h * 3]});
          test::Scratch scratch(kernels::attention_decode_scratch_bytes(shape, n_heads));
          kernels::attention_decode(shape, heads, scratch.get());
          for (size_t h = n - n_heads; h < n; ++h) {
            CAPTURE(h);
            const std::vector<float> own(q.begin() + static_cast<ptrdiff_t>(h * width),
                                         q.begin() + static_cast<ptrdiff_t>((h + 1) * width));
            const Result alone = run(shape, own, items[h]);
            CHECK(std::equal(alone.o.begin(), alone.o.end(), &o[h * width]));
            CHECK(std::equal(alone.lse.begin(), alone.lse.end(), &lse[h * 3]));
          }
        }
      });
    }
  }

  TEST_CASE("sharp and flat logits, and a softcap") {
    for (const float scale : {0.0f, 1e-3f, 6.0f}) {
      for (const float softcap : {0.0f, 30.0f}) {
        CAPTURE(scale);
        AttentionShape shape = make_shape(4, 64, ElementType::kF32);
        shape.softcap = softcap;
        const test::StoredKv kv(shape, 300, 41, scale);
        check_against_reference(shape, test::random_floats(4 * 64, 1.0f, 42), {&kv.rows, 1});
      }
    }
  }

  TEST_CASE("logits of 200 and 201 neither overflow nor lose the answer") {
    AttentionShape shape = make_shape(1, 1, ElementType::kF32);
    shape.softmax_scale = 1.0f;
    const std::vector<float> k = {200.0f, 201.0f};
    const std::vector<float> v = {0.0f, 1.0f};
    KvRows rows;
    rows.k = k.data();
    rows.v = v.data();
    rows.k_token_stride = 4;
    rows.v_token_stride = 4;
    rows.end = 2;
    test::for_each_simd_target([&] {
      const Result r = run(shape, {1.0f}, {&rows, 1});
      CHECK(r.lse[0] == doctest::Approx(201.3132617).epsilon(1e-7));
      CHECK(r.o[0] == doctest::Approx(0.7310586).epsilon(1e-6));
    });
  }

  TEST_CASE("nothing attended is (0, -inf): no items, empty items, all weights -inf") {
    const AttentionShape shape = make_shape(2, 36, ElementType::kF16);
    const test::StoredKv kv(shape, 40, 51);
    const auto q = test::random_floats(2 * 36, 1.0f, 52);
    KvRows empty = kv.rows;
    empty.begin = empty.end = 17;
    KvRows weighted = kv.rows;
    const float hidden = kMinusInfinity;
    weighted.log_weight = &hidden;
    weighted.weight_width = 1;
    test::for_each_simd_target([&] {
      for (const std::vector<KvRows>& items :
           {std::vector<KvRows>{}, {empty}, {weighted}, {weighted, empty}}) {
        const Result r = run(shape, q, items);
        for (float x : r.o) CHECK(x == 0.0f);
        for (float x : r.lse) CHECK(x == kMinusInfinity);
      }
    });
  }

  TEST_CASE("blocks, token lists, ranges and log-weights of every width mix in one call") {
    const AttentionShape shape = make_shape(3, 48, ElementType::kBF16);
    const test::StoredKv a(shape, 150, 61);
    const test::StoredKv b(shape, 33, 63);
    const std::vector<uint32_t> tokens = {0, 3, 4, 31, 32};
    const auto weights = test::random_floats(5 * 3, 1.0f, 65);
    std::vector<float> per_row = weights;
    per_row[4] = kMinusInfinity;  // row 1 is not for head 1
    KvRows range = a.rows;
    range.begin = 5;
    range.end = 149;
    KvRows list = b.rows;
    list.tokens = tokens.data();
    list.end = 5;
    list.log_weight = per_row.data();
    list.weight_width = 3;
    list.weight_row_stride = 3;
    KvRows one_each = list;
    one_each.weight_width = 1;
    one_each.weight_row_stride = 1;
    KvRows whole_block = a.rows;
    whole_block.end = 5;
    whole_block.log_weight = weights.data();
    whole_block.weight_width = 3;
    whole_block.weight_row_stride = 0;
    const auto q = test::random_floats(3 * 48, 1.0f, 66);
    check_against_reference(shape, q, std::vector<KvRows>{range, list});
    check_against_reference(shape, q, std::vector<KvRows>{list, whole_block, range});
    check_against_reference(shape, q, std::vector<KvRows>{one_each, range, whole_block});
  }

  TEST_CASE("a weight of ln n counts a key n times") {
    const AttentionShape shape = make_shape(2, 16, ElementType::kF32);
    const test::StoredKv kv(shape, 9, 71);
    const auto q = test::random_floats(32, 1.0f, 72);
    KvRows heavy = kv.rows;
    const float ln3 = std::log(3.0f);
    heavy.log_weight = &ln3;
    heavy.weight_width = 1;
    test::for_each_simd_target([&] {
      const Result once = run(shape, q, {&heavy, 1});
      const Result thrice = run(shape, q, std::vector<KvRows>{kv.rows, kv.rows, kv.rows});
      for (size_t i = 0; i < once.o.size(); ++i) {
        CHECK(once.o[i] == doctest::Approx(thrice.o[i]).epsilon(1e-5));
      }
      CHECK(once.lse[1] == doctest::Approx(thrice.lse[1]).epsilon(1e-6));
    });
  }

  TEST_CASE("any partition of the keys merges to the dense result to 1e-6") {
    const AttentionShape shape = make_shape(4, 64, ElementType::kF32);
    const test::StoredKv kv(shape, 700, 81);
    const auto q = test::random_floats(4 * 64, 1.0f, 82);
    std::vector<double> dense(4 * 64);
    std::vector<double> dense_lse(4);
    kernels::reference::attention(shape, q.data(), 0, {}, {&kv.rows, 1}, dense.data(),
                                  dense_lse.data());
    std::mt19937 random(83);
    test::for_each_simd_target([&] {
      std::vector<float> o(4 * 64, 0.0f);
      std::vector<float> lse(4, kernels::kEmptyLse);
      for (uint32_t begin = 0; begin < 700;) {
        KvRows part = kv.rows;
        part.begin = begin;
        part.end = std::min<uint32_t>(700, begin + static_cast<uint32_t>(random() % 200));
        begin = part.end;
        const Result r = run(shape, q, {&part, 1});
        for (size_t g = 0; g < 4; ++g) {
          kernels::merge_attention(&o[g * 64], &lse[g], &r.o[g * 64], r.lse[g], 64);
        }
      }
      test::check_close(o, dense, 1e-6);
      test::check_close(lse, dense_lse, 1e-6);
    });
  }

  TEST_CASE("a NaN in a key is seen in the output") {
    const AttentionShape shape = make_shape(2, 16, ElementType::kF32);
    std::vector<float> k(20 * 16, 0.5f);
    k[7 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
    KvRows rows;
    rows.k = k.data();
    rows.v = k.data();
    rows.k_token_stride = rows.v_token_stride = 64;
    rows.end = 7;
    test::for_each_simd_target([&] {
      CHECK_FALSE(std::isnan(run(shape, test::random_floats(32, 1.0f, 92), {&rows, 1}).o[0]));
    });
    rows.end = 20;
    test::for_each_simd_target([&] {
      CHECK(std::isnan(run(shape, test::random_floats(32, 1.0f, 92), {&rows, 1}).o[0]));
    });
  }
}

TEST_SUITE("kernels/attention_state") {
  TEST_CASE("the merge follows its formula") {
    float o = 1.0f;
    float lse = std::log(2.0f);
    const float other = 5.0f;
    kernels::merge_attention(&o, &lse, &other, std::log(6.0f), 1);
    CHECK(lse == doctest::Approx(std::log(8.0)).epsilon(1e-7));
    CHECK(o == doctest::Approx(4.0).epsilon(1e-6));
  }

  TEST_CASE("the empty set is neutral on either side, and two of them stay empty") {
    float o = 0.0f;
    float lse = kMinusInfinity;
    const float other = 7.0f;
    const float nothing = 0.0f;
    kernels::merge_attention(&o, &lse, &nothing, kMinusInfinity, 1);
    CHECK(o == 0.0f);
    CHECK(lse == kMinusInfinity);
    kernels::merge_attention(&o, &lse, &other, std::log(3.0f), 1);
    CHECK(o == 7.0f);
    CHECK(lse == std::log(3.0f));
    kernels::merge_attention(&o, &lse, &nothing, kMinusInfinity, 1);
    CHECK(o == 7.0f);
    CHECK(lse == std::log(3.0f));
  }

  TEST_CASE("merging commutes") {
    float a = 0.25f;
    float lse_a = -3.0f;
    float b = -8.0f;
    float lse_b = 2.5f;
    const float a0 = a;
    kernels::merge_attention(&a, &lse_a, &b, lse_b, 1);
    kernels::merge_attention(&b, &lse_b, &a0, -3.0f, 1);
    CHECK(a == doctest::Approx(b).epsilon(1e-6));
    CHECK(lse_a == doctest::Approx(lse_b).epsilon(1e-7));
  }
}
