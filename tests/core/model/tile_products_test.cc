// Products in chunks of inputs and groups of panels, over integers: every sum is exact in f32 in
// any order, so results are those of integer arithmetic.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/tile_products.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/panel_matrix.h"
#include "core/model/layers/quantized_panel.h"

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
    for (uint32_t j = 0; j < kOut; ++j) {
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

TEST_CASE("groups of panels and chunks of inputs give the sums of integer arithmetic") {
  if (!OneDnnProducts::supported(Compute::kBF16)) {
    MESSAGE("SKIPPED: this CPU has no bf16 products");
    return;
  }
  TileProducts tiles(2);
  constexpr uint32_t kRows = 70;
  struct Group {
    uint32_t first, n;
  };
  for (const bool quantized : {false, true})
    for (const uint32_t n_in : {32u, 512u, 576u, 1024u, 1696u}) {
      const Weights w(n_in, quantized);
      const auto x = integers(kRows, n_in, false, 3);
      std::vector<uint16_t> rounded(x.size());
      TileProducts::round(x.data(), 0, 11, kRows, n_in, rounded.data());
      TileProducts::round(x.data(), 11, kRows, kRows, n_in, rounded.data());
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
        for (const auto& [first, count] : {std::pair{0u, kRows}, std::pair{3u, 33u}}) {
          CAPTURE(quantized);
          CAPTURE(n_in);
          CAPTURE(accumulate);
          CAPTURE(first);
          std::vector<float> y(want.size(), 2.0f);
          uint32_t worker = 0;
          for (const Group group : {Group{0, 1}, Group{1, 4}})
            tiles.multiply({rounded.data(), kRows, n_in, first, count}, w.m, group.first, group.n,
                           accumulate, y.data() + size_t{first} * kOut + group.first * 64, kOut,
                           worker++);
          size_t wrong = 0;
          for (uint32_t r = 0; r < kRows; ++r)
            for (uint32_t j = 0; j < kOut; ++j) {
              const bool of_task = r >= first && r < first + count;
              const float sum = want[r * kOut + j] + (accumulate ? 2.0f : 0.0f);
              wrong += y[r * kOut + j] != (of_task ? sum : 2.0f);
            }
          CHECK(wrong == 0);
        }
    }
}
