// Products over panels: every choice between our kernel and oneDNN gives each row the same bits,
// whatever the number of rows; near sums in double.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/panel_matrix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/onednn.h"
#include "core/model/layers/quantized_panel.h"
#include "core/platform/cpu_features.h"
#include "kernels/row_ops.h"
#include "tests/support/effort.h"
#include "tests/support/larger_or_nan.h"

namespace {
using namespace kvasir;
using Forms = PanelProducts::Forms;

constexpr uint32_t kRows = 300, kOut = 100;  // no multiple of a panel

float rounded(float value, Compute type) {
  return type == Compute::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

// A value that a panel holds exactly, and its bits there.
float held(kernels::PanelType panel, float value) {
  if (panel == kernels::PanelType::kF32) return value;
  return panel == kernels::PanelType::kF16 ? f16_to_f32(f32_to_f16(value))
                                           : bf16_to_f32(f32_to_bf16(value));
}
uint16_t bits_of(kernels::PanelType panel, float value) {
  return panel == kernels::PanelType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}

// A random matrix in panels, written down from the layout's description.
struct Matrix {
  Matrix(Compute type, kernels::PanelType panel_type, uint32_t n_in) : values(size_t{n_in} * kOut) {
    m.type = type;
    m.stored = panel_type;
    m.n_in = n_in;
    m.n_out = kOut;
    memory.resize(m.n_bytes() / sizeof(float) + 16);
    m.data = reinterpret_cast<std::byte*>(memory.data());
    std::mt19937 random(n_in);
    std::normal_distribution<float> normal;
    for (uint32_t k = 0; k < n_in; ++k)
      for (uint32_t j = 0; j < kOut; ++j) {
        const float value = values[k * kOut + j] = held(panel_type, normal(random));
        std::byte* panel = m.data + j / 64 * m.panel_bytes();
        const bool pairs = panel_type == kernels::PanelType::kBF16Pairs;
        if (panel_type == kernels::PanelType::kF32)
          reinterpret_cast<float*>(panel)[k * 64 + j % 64] = value;
        else
          reinterpret_cast<uint16_t*>(
              panel)[pairs ? (k / 2 * 64 + j % 64) * 2 + k % 2 : k * 64 + j % 64] =
              bits_of(panel_type, value);
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
  using kernels::PanelType;
  for (const auto& [type, panel] : {std::pair{Compute::kF32, PanelType::kF32},
                                    {Compute::kF32, PanelType::kF16},
                                    {Compute::kF32, PanelType::kBF16},
                                    {Compute::kBF16, PanelType::kBF16Pairs}}) {
    const bool onednn = OneDnnProducts::supported(type);
    if (type == Compute::kBF16 && !onednn) continue;
    for (const uint32_t n_in : {1u, 31u, 96u, 512u, 577u, 1025u, 2052u, 8192u}) {
      if (test::few_cases() && n_in == 8192) continue;
      if (test::emulated() && (n_in > 577 || n_in == 512)) continue;
      if (n_in == 8192 && (panel == PanelType::kF16 || panel == PanelType::kBF16)) continue;
      CAPTURE(n_in);
      const Matrix w(type, panel, n_in);
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
        for (uint32_t n = 1; n <= kRows; n += test::few_cases() ? 67 : n < 66 ? 1 : 17) {
          const uint32_t first = n * 7 % (kRows + 1 - n);
          const auto some = product(products, w, x.data() + size_t{first} * n_in, n, accumulate);
          CAPTURE(n);
          CHECK(std::equal(some.begin(), some.end(), all.begin() + size_t{first} * kOut));
        }
      }
      const auto by_choice = product(chosen, w, x.data(), kRows, accumulate);
      for (uint32_t r = 0; r < kRows; r += test::few_cases() ? 17 : 1) {
        const auto alone = product(chosen, w, x.data() + size_t{r} * n_in, 1, accumulate);
        CHECK(std::equal(alone.begin(), alone.end(), by_choice.begin() + size_t{r} * kOut));
      }
    }
  }
}

namespace {

// Outputs of normal weights in a quantised type, packed as a file's rows are.
struct QuantizedMatrix {
  explicit QuantizedMatrix(uint32_t n_in, GgmlType type = GgmlType::kQ8_0, uint32_t n_out = kOut)
      : values(size_t{n_in} * n_out) {
    m.type = Compute::kInt8;
    m.quantized = *quantized_type(type);
    m.n_in = n_in;
    m.n_out = n_out;
    memory.resize(m.n_bytes() / sizeof(float));
    m.data = reinterpret_cast<std::byte*>(memory.data());
    std::mt19937 random(n_in + 7);
    std::normal_distribution<float> normal;
    const size_t row_bytes = size_t{n_in} / block_elements(type) * block_bytes(type);
    std::vector<float> row(n_in);
    std::vector<std::byte> rows(row_bytes * n_out);
    for (uint32_t j = 0; j < n_out; ++j) {
      for (float& value : row) value = normal(random);
      std::byte* to = rows.data() + j * row_bytes;
      quantize(type, row.data(), to, n_in);
      dequantize(type, to, row.data(), n_in);
      for (uint32_t k = 0; k < n_in; ++k) values[k * n_out + j] = row[k];
    }
    for (uint32_t p = 0; p < m.n_panels(); ++p)
      pack_quantized_panel(m.quantized, rows.data() + p * 64 * row_bytes, row_bytes,
                           m.panel_cols(p), n_in, m.data + p * m.panel_bytes());
  }
  std::vector<float> values;  // [n_in, n_out], as stored
  std::vector<float> memory;
  PanelMatrix m;
};

struct Products {
  std::vector<float> quantized, plain;
};

// One call for a quantised and a plain matrix, as a layer whose tensors have several types makes.
Products mixed(PanelProducts& products, const QuantizedMatrix& q, const Matrix& w, const float* x,
               uint32_t n) {
  Products y{std::vector<float>(size_t{n} * kOut), std::vector<float>(size_t{n} * kOut)};
  std::vector<float> bias(kOut);
  for (uint32_t j = 0; j < kOut; ++j) bias[j] = static_cast<float>(j);
  const PanelProducts::Product list[] = {{&q.m, y.quantized.data(), bias.data(), false},
                                         {&w.m, y.plain.data(), nullptr, false}};
  products.multiply(x, n, list);
  return y;
}

}  // namespace

TEST_CASE("quantised and plain matrices share a call; each row is near the sum in double") {
  ThreadPool pool(Topology::detect(), 2, false);
  constexpr uint32_t kIn = 576;
  for (const Compute type : {Compute::kF32, Compute::kBF16}) {
    if (!compute_supported(type)) continue;
    const Matrix w(
        type, type == Compute::kBF16 ? kernels::PanelType::kBF16Pairs : kernels::PanelType::kF16,
        kIn);
    const QuantizedMatrix q(kIn);
    const auto x = random_rows(kIn);
    PanelProducts products(pool, {type, true, true, kRows, {kIn}});
    PanelProducts plain_only(pool, {type, false, true, kRows, {kIn}});
    const Products all = mixed(products, q, w, x.data(), kRows);
    CHECK(all.plain == product(plain_only, w, x.data(), kRows, false));
    double worst = 0.0;
    for (uint32_t r = 0; r < kRows; r += 17)
      for (uint32_t j = 0; j < kOut; j += 9) {
        double want = j;
        for (uint32_t k = 0; k < kIn; ++k)
          want += double{x[r * kIn + k]} * double{q.values[k * kOut + j]};
        worst = test::larger_or_nan(worst, std::abs(double{all.quantized[r * kOut + j]} - want));
      }
    // A row's step is max |x| / 127, about 0.02 for 32 normal numbers; its error, uniform within a
    // step, has deviation 0.02 / sqrt(12), times sqrt(576) of weights: 0.14. Six of those.
    CHECK(worst < 0.9);
    CHECK(worst > 1e-3);  // rows are rounded
    for (uint32_t n = 1; n <= kRows; n += n < 20 ? 1 : 47) {
      const uint32_t first = n * 7 % (kRows + 1 - n);
      const Products some = mixed(products, q, w, x.data() + size_t{first} * kIn, n);
      CAPTURE(n);
      CHECK(std::equal(some.quantized.begin(), some.quantized.end(),
                       all.quantized.begin() + size_t{first} * kOut));
      CHECK(std::equal(some.plain.begin(), some.plain.end(),
                       all.plain.begin() + size_t{first} * kOut));
    }
  }
}

TEST_CASE("rows of 16 bits are near the sum in double, and those beside them have 8") {
  constexpr uint32_t kIn = 576, kMany = 300;
  const QuantizedMatrix plain(kIn, GgmlType::kQ5_0);
  QuantizedMatrix fine = plain;
  fine.m.data = reinterpret_cast<std::byte*>(fine.memory.data());
  fine.m.rows_16_bit = true;
  const auto x = random_rows(kIn);
  ThreadPool pool(Topology::detect(), 2, false);
  PanelProducts products(pool, {{}, true, true, kMany, {kIn}});
  const auto alone = [&](uint32_t n, bool accumulate) {
    std::vector<float> y(size_t{n} * kOut, 0.375f);
    const PanelProducts::Product one{&plain.m, y.data(), nullptr, accumulate};
    products.multiply(x.data(), n, {&one, 1});
    return y;
  };
  for (const bool accumulate : {false, true}) {
    std::vector<float> all;
    for (const uint32_t n : {kMany, 127u, 13u, 9u, 8u, 7u, 3u, 1u}) {
      CAPTURE(n);
      std::vector<float> y(size_t{n} * kOut, 0.375f), beside = y, bias(kOut, 0.25f);
      const PanelProducts::Product both[] = {
          {&plain.m, beside.data(), nullptr, accumulate},
          {&fine.m, y.data(), accumulate ? nullptr : bias.data(), accumulate}};
      products.multiply(x.data(), n, both);
      CHECK(beside == alone(n, accumulate));
      if (n == kMany) all = y;
      CHECK(std::equal(y.begin(), y.end(), all.begin()));
    }
    double worst = 0.0;
    for (uint32_t r = 0; r < kMany; r += 17)
      for (uint32_t j = 0; j < kOut; j += 9) {
        double want = accumulate ? 0.375 : 0.25;
        for (uint32_t k = 0; k < kIn; ++k)
          want += double{x[r * kIn + k]} * double{fine.values[k * kOut + j]};
        worst = test::larger_or_nan(worst, std::abs(double{all[r * kOut + j]} - want));
      }
    // 1 / 254 of the error of 8 bits (0.9, above), and f32 sums.
    CHECK(worst < 0.004);
    CHECK(worst > 1e-5);
  }
}

TEST_CASE("tasks of many rows over quantised panels give a row the bits of few") {
  constexpr uint32_t kIn = 96, kMany = 800, kFew = 5;
  const QuantizedMatrix q8(kIn), q5(kIn, GgmlType::kQ5_0);  // with AVX2 only this is unpacked
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{kMany} * kIn);
  for (float& value : x) value = normal(random);
  ThreadPool pool(Topology::detect(), 2, false);
  PanelProducts::Options options{{}, true, true, kMany, {kIn}};
  PanelProducts products(pool, options);
  for (const QuantizedMatrix* q : {&q8, &q5})
    for (const size_t n_matrices : {1u, 8u})  // 2 panels each: blocks of 256 rows and of 512
      for (const uint32_t n : {385u, kMany}) {
        CAPTURE(q == &q5);
        CAPTURE(n_matrices);
        CAPTURE(n);
        std::vector<float> y(n_matrices * n * kOut), few(size_t{kFew} * kOut);
        std::vector<PanelProducts::Product> list;
        for (size_t i = 0; i < n_matrices; ++i) list.push_back({&q->m, y.data() + i * n * kOut});
        products.multiply(x.data(), n, list);
        for (uint32_t first = 0; first + kFew <= n; first += kFew) {
          const PanelProducts::Product one{&q->m, few.data()};
          products.multiply(x.data() + size_t{first} * kIn, kFew, {&one, 1});
          bool same = true;
          for (size_t i = 0; i < n_matrices; ++i)
            same &= std::equal(few.begin(), few.end(), y.begin() + (i * n + first) * kOut);
          CHECK(same);
        }
      }
}

TEST_CASE("a gated product has the bits of its three products one after the other") {
  constexpr uint32_t kIn = 96, kGated = 160, kMany = 800;  // kGated: two panels and a half
  const QuantizedMatrix gate(kIn, GgmlType::kQ4_0, kGated), up(kIn, GgmlType::kQ5_1, kGated);
  const QuantizedMatrix down(kGated);
  const Matrix plain_down(Compute::kF32, kernels::PanelType::kF32, kGated);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{kMany} * kIn);
  for (float& value : x) value = normal(random);
  ThreadPool pool(Topology::detect(), 2, false);
  PanelProducts in_int8(pool, {Compute::kF32, true, true, kMany, {kIn, kGated}, kGated});
  PanelProducts best(pool, {Compute::kF32, true, false, kMany, {kIn, kGated}, kGated});
  for (PanelProducts* of : {&in_int8, &best})  // the best: tiles, where they are
    for (const auto& [plain, activation] : {std::pair{false, Activation::kSilu},
                                            {false, Activation::kGelu},
                                            {true, Activation::kSilu},
                                            {true, Activation::kGelu}})
      for (const uint32_t n : {1u, 7u, 130u, kMany}) {
        CAPTURE(of == &best);
        CAPTURE(plain);
        CAPTURE(n);
        PanelProducts& products = *of;
        std::vector<float> act(size_t{n} * kGated), of_up(act.size()), got(size_t{n} * kOut, 0.25f);
        std::vector<float> want = got;
        const PanelMatrix& last = plain ? plain_down.m : down.m;
        products.multiply_gated(x.data(), n, {gate.m, up.m, activation},
                                {&last, got.data(), nullptr, true});
        const PanelProducts::Product both[] = {{&gate.m, act.data()}, {&up.m, of_up.data()}};
        products.multiply(x.data(), n, both);
        const auto unit = activation == Activation::kGelu ? &kernels::geglu : &kernels::swiglu;
        unit(act.data(), of_up.data(), act.size());
        const PanelProducts::Product one{&last, want.data(), nullptr, true};
        products.multiply(act.data(), n, {&one, 1});
        CHECK(got == want);
      }
}

TEST_CASE("many rows in tiles are near the sum in double, few as without tiles") {
  if (!PanelProducts::in_tiles(false)) {
    MESSAGE("SKIPPED: this CPU has no tiles of bf16");
    return;
  }
  ThreadPool pool(Topology::detect(), 2, false);
  constexpr uint32_t kIn = 576;
  for (const Compute type : {Compute::kF32, Compute::kBF16}) {
    const Matrix w(
        type, type == Compute::kBF16 ? kernels::PanelType::kBF16Pairs : kernels::PanelType::kF16,
        kIn);
    const QuantizedMatrix q(kIn);
    const auto x = random_rows(kIn);
    PanelProducts::Options options{type, true, false, kRows, {kIn}};
    options.tiles = false;
    PanelProducts int8(pool, options);
    options.tiles = true;
    PanelProducts tiles(pool, options);
    const Products all = mixed(tiles, q, w, x.data(), kRows);
    const Products without = mixed(int8, q, w, x.data(), kRows);
    if (type == Compute::kF32) CHECK(all.plain == without.plain);
    for (size_t i = 0; i < all.plain.size(); i += 31)  // in bf16 the order of a sum may differ
      CHECK(std::abs(all.plain[i] - without.plain[i]) < 1e-3f);
    double worst = 0.0, worst_of_rounded = 0.0;
    for (uint32_t r = 0; r < kRows; r += 17)
      for (uint32_t j = 0; j < kOut; j += 9) {
        double want = j, of_rounded = j, scale = 1.0;
        for (uint32_t k = 0; k < kIn; ++k) {
          const float a = x[r * kIn + k], b = q.values[k * kOut + j];
          want += double{a} * double{b};
          const double term =
              double{rounded(a, Compute::kBF16)} * double{rounded(b, Compute::kBF16)};
          of_rounded += term;
          scale += std::abs(term);
        }
        const double got = all.quantized[r * kOut + j];
        worst = test::larger_or_nan(worst, std::abs(got - want));
        worst_of_rounded =
            test::larger_or_nan(worst_of_rounded, std::abs(got - of_rounded) / scale);
      }
    CHECK(worst_of_rounded < 1e-5);
    // Rows and weights are off by 2^-9 at most, uniformly: a product of normal numbers has an error
    // of deviation 2^-9 / sqrt(3) * sqrt(2), times sqrt(576): 0.04. Six of those.
    CHECK(worst < 0.24);
    CHECK(worst > 1e-3);
    for (const uint32_t n : {1u, 8u, 28u}) {
      const Products some = mixed(tiles, q, w, x.data(), n);
      CHECK(some.quantized == mixed(int8, q, w, x.data(), n).quantized);
    }
    for (const uint32_t n : {29u, 100u, 257u}) {
      const Products some = mixed(tiles, q, w, x.data(), n);
      for (uint32_t i = 0; i < n * kOut; i += 31)
        CHECK(std::abs(some.quantized[i] - all.quantized[i]) < 1e-3f);
    }
  }
}

TEST_CASE("tiles take quantised matrices where AMX is, and never with deterministic") {
  CHECK_FALSE(PanelProducts::in_tiles(true));
  if (!cpu_features().amx_bf16) CHECK_FALSE(PanelProducts::in_tiles(false));
}
