// Products in chunks of inputs and groups of panels, over integers: every sum is exact in f32 in
// any order, so results are those of integer arithmetic.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/tile_products.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/panel_matrix.h"
#include "core/model/layers/quantized_panel.h"
#include "kernels/simd_target.h"

namespace {
using namespace kvasir;

constexpr uint32_t kOut = 300;  // five panels, the last of 44

// [n, n_in] of integers from -8 to 8; a block of 32 has a 127, so that its scale in Q8_0 is 1.
std::vector<float> integers(uint32_t n, uint32_t n_in, bool blocks, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<float> values(size_t{n} * n_in);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = blocks && i % 32 == 5 ? 127.0f : static_cast<float>(random() % 17) - 8.0f;
  return values;
}

struct Weights {
  Weights(uint32_t n_in, bool quantized) : values(integers(kOut, n_in, quantized, n_in)) {
    m.n_in = n_in;
    m.n_out = kOut;
    m.type = quantized ? Compute::kInt8 : Compute::kBF16;
    m.stored = kernels::PanelType::kBF16Pairs;
    m.quantized = kernels::QuantizedType::kQ8_0;
    memory.resize(m.n_bytes() / sizeof(float) + 16);
    m.data = reinterpret_cast<std::byte*>(memory.data());
    quantized ? pack() : lay_out();
  }
  void lay_out() {
    for (uint32_t j = 0; j < kOut; ++j) {  // what is counted up to 32 inputs is zero
      auto* panel = reinterpret_cast<uint16_t*>(m.data + j / 64 * m.panel_bytes());
      for (uint32_t k = 0; k < m.n_in; ++k)
        panel[(k / 2 * 64 + j % 64) * 2 + k % 2] = f32_to_bf16(values[size_t{j} * m.n_in + k]);
    }
  }
  void pack() {
    const size_t row_bytes = size_t{m.n_in} / 32 * 34;
    std::vector<std::byte> rows(row_bytes * kOut);
    quantize(GgmlType::kQ8_0, values.data(), rows.data(), values.size());
    for (uint32_t p = 0; p < m.n_panels(); ++p)
      pack_quantized_panel(m.quantized, rows.data() + p * 64 * row_bytes, row_bytes,
                           m.panel_cols(p), m.n_in, m.data + p * m.panel_bytes());
  }
  std::vector<float> values;  // [kOut, n_in]
  std::vector<float> memory;
  PanelMatrix m;
};

}  // namespace

TEST_CASE("rows in tiles hold each input rounded to bf16, and zeros behind the last") {
  if (!kernels::has_tiled_rows()) {
    MESSAGE("SKIPPED: this CPU has no conversion to bf16");
    return;
  }
  constexpr uint32_t kRows = 70;
  std::minstd_rand random(5);
  std::uniform_real_distribution<float> uniform(-3.0f, 3.0f);
  for (const uint32_t n_in : {1u, 17u, 32u, 50u, 256u, 300u, 576u}) {
    CAPTURE(n_in);
    std::vector<float> x(size_t{kRows} * n_in);
    for (float& value : x) value = uniform(random);
    const kernels::TiledRows layout = kernels::tiled_rows(kRows, n_in);
    CHECK(layout.n == 96);
    std::vector<uint16_t> out(layout.elements() + 1, 0x7FFF);
    // In parts: of rows, and of inputs.
    const uint32_t part = n_in > 256 ? 256 : n_in > 32 ? 32 : 0;
    kernels::tile_rows(x.data(), n_in, 0, 11, 0, n_in, layout, out.data());
    const float* rest = x.data() + size_t{11} * n_in;
    kernels::tile_rows(rest, n_in, 11, kRows, 0, part, layout, out.data());
    kernels::tile_rows(rest + part, n_in, 11, kRows, part, n_in - part, layout, out.data());
    size_t wrong = 0;
    for (size_t r = 0; r < kRows; ++r)
      for (size_t k = 0; k < layout.n_in; ++k) {
        const size_t chunk = k / 256, inputs = std::min<size_t>(256, layout.n_in - chunk * 256);
        const size_t tile = r / 16 * (inputs / 32) + k % 256 / 32;
        const uint16_t got = out[chunk * 256 * layout.n + tile * 512 + r % 16 * 32 + k % 32];
        wrong += got != (k < n_in ? f32_to_bf16(x[r * n_in + k]) : 0);
      }
    CHECK(wrong == 0);
    CHECK(out.back() == 0x7FFF);
  }
}

TEST_CASE("groups of panels and chunks of inputs give the sums of integer arithmetic") {
  if (!kernels::uses_bf16_tiles()) {
    MESSAGE("SKIPPED: this CPU has no tiles of bf16");
    return;
  }
  TileProducts tiles(2);
  constexpr uint32_t kRows = 110;
  struct Group {
    uint32_t first, n;
  };
  for (const bool quantized : {false, true})
    for (const uint32_t n_in : {32u, 50u, 256u, 512u, 576u, 1696u}) {
      if (quantized && n_in % 32 != 0) continue;
      const Weights w(n_in, quantized);
      const auto x = integers(kRows, n_in, false, 3);
      const kernels::TiledRows layout = kernels::tiled_rows(kRows, n_in);
      std::vector<uint16_t> rounded(layout.elements());
      kernels::tile_rows(x.data(), n_in, 0, kRows, 0, n_in, layout, rounded.data());
      std::vector<float> want(size_t{kRows} * kOut);
      for (uint32_t r = 0; r < kRows; ++r)
        for (uint32_t j = 0; j < kOut; ++j) {
          int64_t sum = 0;
          for (uint32_t k = 0; k < n_in; ++k)
            sum += static_cast<int64_t>(x[r * n_in + k]) *
                   static_cast<int64_t>(w.values[size_t{j} * n_in + k]);
          want[r * kOut + j] = static_cast<float>(sum);
        }
      for (const bool accumulate : {false, true})
        for (const auto& [first, count] :
             {std::pair{0u, kRows}, std::pair{32u, 33u}, std::pair{64u, 1u}}) {
          CAPTURE(quantized);
          CAPTURE(n_in);
          CAPTURE(accumulate);
          CAPTURE(first);
          std::vector<float> y(want.size() + 1, 2.0f);
          uint32_t worker = 0;
          for (const Group group : {Group{0, 1}, Group{1, 4}}) {
            std::vector<TileProducts::Panel> panels;
            for (uint32_t p = group.first; p < group.first + group.n; ++p)
              panels.push_back({&w.m,
                                p,
                                {y.data() + size_t{first} * kOut + p * 64, kOut, w.m.panel_cols(p),
                                 accumulate}});
            tiles.multiply({rounded.data(), layout, first, count}, panels, worker++);
          }
          size_t wrong = 0;
          for (uint32_t r = 0; r < kRows; ++r)
            for (uint32_t j = 0; j < kOut; ++j) {
              const bool of_task = r >= first && r < first + count;
              const float sum = want[r * kOut + j] + (accumulate ? 2.0f : 0.0f);
              wrong += y[r * kOut + j] != (of_task ? sum : 2.0f);
            }
          CHECK(wrong == 0);
          CHECK(y.back() == 2.0f);
        }
    }
}
