// Products over panels: every choice between our kernel and oneDNN gives each row the same bits,
// whatever the number of rows; near sums in double.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/panel_matrix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/model/gguf/float16.h"
#include "core/model/layers/onednn.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using Forms = PanelProducts::Forms;

constexpr uint32_t kRows = 300, kOut = 100;  // no multiple of a panel

float rounded(float value, Compute type) {
  return type == Compute::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

// A random matrix in panels, written down from the layout's description.
struct Matrix {
  Matrix(Compute type, uint32_t n_in) : values(size_t{n_in} * kOut) {
    m.type = type;
    m.n_in = n_in;
    m.n_out = kOut;
    memory.resize(m.n_bytes() / sizeof(float) + 16);
    m.data = reinterpret_cast<std::byte*>(memory.data());
    std::mt19937 random(n_in);
    std::normal_distribution<float> normal;
    for (uint32_t k = 0; k < n_in; ++k)
      for (uint32_t j = 0; j < kOut; ++j) {
        const float value = values[k * kOut + j] = rounded(normal(random), type);
        std::byte* panel = m.data + j / 64 * m.panel_bytes();
        if (type == Compute::kBF16)
          reinterpret_cast<uint16_t*>(panel)[(k / 2 * 64 + j % 64) * 2 + k % 2] =
              f32_to_bf16(value);
        else
          reinterpret_cast<float*>(panel)[k * 64 + j % 64] = value;
      }
  }
  std::vector<float> values, memory;
  PanelMatrix m;
};

std::vector<float> random_rows(uint32_t n_in) {
  std::mt19937 random(n_in + 1);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{kRows} * n_in);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> product(PanelProducts& products, const Matrix& w, const float* x, uint32_t n,
                           bool accumulate) {
  std::vector<float> y(size_t{n} * kOut, 0.375f);
  const PanelProducts::Product one{&w.m, y.data(), nullptr, accumulate};
  products.multiply(x, n, {&one, 1});
  return y;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/panel_matrix");

TEST_CASE("every form of product gives a row the same bits, whatever the number of rows") {
  ThreadPool pool(Topology::detect(), 2, false);
  for (const Compute type : {Compute::kF32, Compute::kBF16}) {
    const bool onednn = OneDnnProducts::supported(type);
    if (type == Compute::kBF16 && !onednn) continue;
    for (const uint32_t n_in : {1u, 31u, 96u, 512u, 577u, 1025u, 2052u, 8192u}) {
      if (test::few_cases() && n_in == 8192) continue;
      CAPTURE(n_in);
      const Matrix w(type, n_in);
      const auto x = random_rows(n_in);
      PanelProducts::Options options{type, false, true, kRows, {n_in}};
      PanelProducts chosen(pool, options);
      // Another choice is as right, but slower: oneDNN's f32 sums in our order, as long as it is
      // the version that chain_inputs() describes.
      if (type == Compute::kF32) CHECK(chosen.forms() == (onednn ? Forms::kBoth : Forms::kOwn));
      options.forms = Forms::kOwn;
      PanelProducts own(pool, options);
      const bool accumulate = n_in % 2;
      const auto all = product(own, w, x.data(), kRows, accumulate);
      for (uint32_t r = 0; r < kRows; r += 17)
        for (uint32_t j = 0; j < kOut; j += 9) {
          double want = accumulate ? 0.375 : 0.0, scale = 1.0;
          for (uint32_t k = 0; k < n_in; ++k) {
            const double term =
                double{rounded(x[r * n_in + k], type)} * double{w.values[k * kOut + j]};
            want += term;
            scale += std::abs(term);
          }
          CHECK(std::abs(double{all[r * kOut + j]} - want) < 1e-5 * scale);
        }
      // Of a machine whose oneDNN sums in another order, only what was chosen is the same.
      std::vector<Forms> forms{Forms::kOwn};
      if (chosen.forms() == Forms::kBoth) forms = {Forms::kOwn, Forms::kOneDnn, Forms::kBoth};
      for (const Forms form : forms) {
        options.forms = form;
        PanelProducts products(pool, options);
        for (uint32_t n = 1; n <= kRows; n += n < 66 && !test::few_cases() ? 1 : 17) {
          const uint32_t first = n * 7 % (kRows + 1 - n);
          const auto some = product(products, w, x.data() + size_t{first} * n_in, n, accumulate);
          CAPTURE(n);
          CHECK(std::equal(some.begin(), some.end(), all.begin() + size_t{first} * kOut));
        }
      }
      const auto by_choice = product(chosen, w, x.data(), kRows, accumulate);
      for (uint32_t r = 0; r < kRows; ++r) {
        const auto alone = product(chosen, w, x.data() + size_t{r} * n_in, 1, accumulate);
        CHECK(std::equal(alone.begin(), alone.end(), by_choice.begin() + size_t{r} * kOut));
      }
    }
  }
}
