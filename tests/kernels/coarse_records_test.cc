// Bounds of coarse copies against scores in double: never below, and no further above than their
// definition says.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/coarse_records.h"

#include <limits>

#include "tests/kernels/rows.h"
#include "tests/support/effort.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::ElementType;
using kernels::Records;

// Records with a gap between them whose elements lie about a middle of their own, as keys do.
struct Page {
  std::vector<uint8_t> bytes;
  Records records;
  size_t width;

  Page(size_t n, size_t n_elements, ElementType type, float spread, uint32_t seed)
      : width(n_elements) {
    const auto middle = test::random_floats(width, 10.0f, seed);
    auto x = test::random_floats(n * width, spread, seed + 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] += middle[i % width];
    const size_t stride = test::row_stride(type, width, 6);
    bytes = test::store_rows(x, width, stride, type);
    records = {bytes.data(), stride, n, width, type, nullptr};
  }
  double element(size_t record, size_t d) const {
    return kernels::reference::element(bytes.data() + record * records.record_bytes, d,
                                       records.type);
  }
  double score(size_t record, const std::vector<float>& weight) const {
    double sum = 0;
    for (size_t d = 0; d < width; ++d) sum += double{weight[d]} * element(record, d);
    return sum;
  }
};

// A power of two in which the elements of a page are below 2^15.
double unit_of(const Page& page) {
  double largest = 0;
  for (size_t b = 0; b < page.records.n; ++b)
    for (size_t d = 0; d < page.width; ++d)
      largest = std::max(largest, std::fabs(page.element(b, d)));
  return largest > 0 ? std::exp2(std::max(std::floor(std::log2(largest)) + 1 - 15, -100.0)) : 1;
}

// The distance of two numbers of f16 near x.
double f16_step(double x) {
  const double exponent = x == 0 ? -14 : std::max(std::floor(std::log2(std::fabs(x))), -14.0);
  return std::exp2(exponent - 10);
}
double nearest_f16(double x) { return std::nearbyint(x / f16_step(x)) * f16_step(x); }

// x where f16 has it, else a number of f16 on that side of it: half a step or more away from x, so
// that rounding cannot come back over it.
double outwards(double x, double sign) {
  if (nearest_f16(x) == x) return x;
  const double out = nearest_f16(x + sign * std::max(std::fabs(x) / 2048, std::exp2(-25)));
  return (out - x) * sign < 0 ? out + sign * f16_step(out) : out;
}

// Element d of the records of a page in 16 steps, whose low end and width are numbers of f16 in
// units.
struct Steps {
  double low, step;
  double magnitude;  // of the largest element
  Steps(const Page& page, size_t d) {
    const double unit = unit_of(page);
    double least = test::kInf, most = -test::kInf;
    for (size_t b = 0; b < page.records.n; ++b) {
      least = std::min(least, page.element(b, d));
      most = std::max(most, page.element(b, d));
    }
    magnitude = std::max(std::fabs(least), std::fabs(most));
    low = outwards(least / unit, -1) * unit;
    step = outwards((most - low) / unit / 16, 1) * unit;
  }
  // Of an element, from the middle of its step, in steps.
  double off(double element) const {
    if (step == 0) return 0;
    const double steps = (element - low) / step;
    return steps - std::min(std::floor(steps), 15.0) - 0.5;
  }
};

// What the definition allows the bounds to be above the scores: that records are off the middles of
// their steps, on either side, what rounding the weights to 16 bits adds, and f32.
std::vector<double> slack(const Page& page, const std::vector<float>& weight) {
  double half_steps = 0, squares = 0, largest = 0, size = 0;
  std::vector<double> off(page.records.n, 0);  // square of the distance, in steps
  for (size_t d = 0; d < page.width; ++d) {
    const Steps steps(page, d);
    const double step = std::fabs(double{weight[d]}) * steps.step;
    half_steps += step / 2;
    squares += step * step;
    for (size_t b = 0; b < page.records.n; ++b)
      off[b] += std::pow(steps.off(page.element(b, d)), 2);
    largest = std::max(largest, step);
    size += std::fabs(double{weight[d]}) * steps.magnitude;
  }
  const double farthest = std::sqrt(static_cast<double>(page.width)) / 2;
  std::vector<double> out;
  for (const double square : off) {
    const double distance = std::sqrt(square) + 1.001 * farthest / 255;  // rounded up
    out.push_back(2 * std::min(half_steps, std::sqrt(squares) * distance) +
                  static_cast<double>(page.width) * 15 * largest / 32639 + 1e-4 * size + 1e-32);
  }
  return out;
}

std::vector<float> bounds(const Page& page, const std::vector<float>& weight) {
  test::Scratch coarse(kernels::coarse_bytes(page.records.n, page.width));
  test::Scratch scratch(kernels::coarse_scratch_bytes(page.width));
  float unit = 0.0f;
  REQUIRE(kernels::make_coarse(page.records, page.width, coarse.get(), &unit));
  std::vector<float> out(page.records.n, -test::kInf);
  kernels::bound_coarse(weight.data(), page.width, coarse.get(), unit, nullptr, page.records.n,
                        out.data(), scratch.get());
  return out;
}

void check_bounds(const Page& page, const std::vector<float>& weight) {
  const std::vector<float> bound = bounds(page, weight);
  const std::vector<double> most = slack(page, weight);
  for (size_t b = 0; b < page.records.n; ++b) {
    const double score = page.score(b, weight);
    CHECK(double{bound[b]} >= score);
    CHECK(double{bound[b]} <= score + most[b]);
  }
}

}  // namespace

TEST_SUITE_BEGIN("kernels/coarse_records");

TEST_CASE("a bound lies above the score of its record, by no more than its definition says") {
  uint32_t seed = 1;
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kQ8_0})
    for (const size_t width : {1u, 3u, 16u, 32u, 49u, 96u, 128u, 256u, 512u})
      for (const size_t n : {16u, 32u, 48u, 64u, 80u}) {
        if (!test::can_store(type, width)) continue;
        if (test::few_cases() && n != 64 && width > 96) continue;
        CAPTURE(width);
        CAPTURE(n);
        const Page page(n, width, type, 1.0f, ++seed);
        const auto weight = test::random_floats(width, 1.0f, ++seed);
        test::for_each_simd_target([&] { check_bounds(page, weight); });
      }
}

TEST_CASE("bounds of weights of one sign, of none, and of one that outweighs the others") {
  const Page page(64, 64, ElementType::kF32, 1.0f, 7);
  test::for_each_simd_target([&] {
    for (const float sign : {-1.0f, 1.0f}) {
      auto weight = test::random_floats(64, 1.0f, 8);
      for (float& w : weight) w = sign * std::fabs(w);
      check_bounds(page, weight);
      weight[5] *= 1e6f;
      check_bounds(page, weight);
    }
    check_bounds(page, std::vector<float>(64, 0.0f));
  });
}

TEST_CASE("bounds of weights that point from the middles of the steps to a record") {
  const Page page(32, 64, ElementType::kF32, 1.0f, 19);
  for (size_t b = 0; b < page.records.n; ++b) {
    std::vector<float> weight(page.width);
    for (size_t d = 0; d < page.width; ++d) {
      const Steps steps(page, d);
      weight[d] = static_cast<float>(steps.off(page.element(b, d)) / steps.step);
    }
    test::for_each_simd_target([&] { check_bounds(page, weight); });
  }
}

TEST_CASE("bounds of weights whose squares are zero in f32") {
  const Page page(64, 64, ElementType::kF32, 1.0f, 17);
  const auto weight = test::random_floats(64, 1e-25f, 18);
  test::for_each_simd_target([&] {
    const std::vector<float> bound = bounds(page, weight);
    for (size_t b = 0; b < page.records.n; ++b) CHECK(double{bound[b]} >= page.score(b, weight));
  });
}

TEST_CASE("elements that are equal in all records, huge, or hardly apart") {
  for (const float spread : {0.0f, 1e-38f, 1e-7f, 1e30f}) {
    CAPTURE(spread);
    const Page page(32, 48, ElementType::kF32, spread, 9);
    const auto weight = test::random_floats(48, 1.0f, 10);
    test::for_each_simd_target([&] { check_bounds(page, weight); });
  }
  Page zeros(16, 32, ElementType::kF32, 0.0f, 11);
  std::fill(zeros.bytes.begin(), zeros.bytes.end(), uint8_t{0});
  test::for_each_simd_target([&] { check_bounds(zeros, test::random_floats(32, 1.0f, 12)); });
}

TEST_CASE("elements that are next to nothing beside others, which no weight counts") {
  for (const float small : {1e-6f, 1e-10f, 1e-22f, 1e-30f})
    for (const float sign : {-1.0f, 1.0f}) {
      CAPTURE(small);
      CAPTURE(sign);
      Page page(16, 48, ElementType::kF32, 1.0f, 21);
      for (size_t b = 0; b < page.records.n; ++b) {
        const float x = sign * small * (1.0f + 0.01f * static_cast<float>(b % 3));
        std::memcpy(page.bytes.data() + b * page.records.record_bytes + 4 * 5, &x, 4);
      }
      std::vector<float> weight(48, 0.0f);
      for (const float of_small : {-3.0f, 3.0f}) {
        weight[5] = of_small;
        test::for_each_simd_target([&] { check_bounds(page, weight); });
      }
    }
}

TEST_CASE("what is not finite has no coarse copy") {
  for (const float bad : {test::kInf, -test::kInf, std::numeric_limits<float>::quiet_NaN()})
    for (const size_t d : {0u, 17u, 36u})
      for (const size_t record : {0u, 30u}) {
        Page page(32, 37, ElementType::kF32, 1.0f, 13);
        std::memcpy(page.bytes.data() + record * page.records.record_bytes + 4 * d, &bad, 4);
        test::for_each_simd_target([&] {
          test::Scratch coarse(kernels::coarse_bytes(32, 37));
          float unit = 0.0f;
          CHECK_FALSE(kernels::make_coarse(page.records, 37, coarse.get(), &unit));
        });
      }
  Page wide(16, 8, ElementType::kF32, 1.0f, 14);  // finite, but their distance is not
  const float far[] = {3e38f, -3e38f};
  for (const size_t record : {0u, 1u})
    std::memcpy(wide.bytes.data() + record * wide.records.record_bytes, &far[record], 4);
  test::for_each_simd_target([&] {
    test::Scratch coarse(kernels::coarse_bytes(16, 8));
    float unit = 0.0f;
    CHECK_FALSE(kernels::make_coarse(wide.records, 8, coarse.get(), &unit));
  });
}

TEST_CASE("a weight that is not finite is seen in the bound") {
  const Page page(16, 32, ElementType::kF16, 1.0f, 15);
  auto weight = test::random_floats(32, 1.0f, 16);
  weight[3] = std::numeric_limits<float>::quiet_NaN();
  test::for_each_simd_target([&] {
    for (const float bound : bounds(page, weight)) CHECK_FALSE(std::isfinite(bound));
  });
}

TEST_SUITE_END();
