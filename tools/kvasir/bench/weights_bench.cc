// See weights_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/weights_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/panel_matrix.h"
#include "core/model/layers/quantized_panel.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kPanelRows = 64;
constexpr uint32_t kMostFewRows = 8, kManyRowsOutputs = 8192;

std::vector<float> random_values(size_t n, uint32_t seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> out(n);
  for (float& x : out) x = uniform(random);
  return out;
}

PanelMatrix shape_of(GgmlType type, Compute compute, uint32_t n_in, uint64_t bytes) {
  PanelMatrix matrix = kept_as(type, type == GgmlType::kF32 ? Compute::kF32 : compute);
  matrix.n_in = n_in;
  matrix.n_out = kPanelRows;
  const uint64_t n_panels = std::max<uint64_t>(1, bytes / matrix.panel_bytes());
  matrix.n_out = static_cast<uint32_t>(n_panels * kPanelRows);
  return matrix;
}

// One panel of random weights, again and again: the numbers do not change the speed.
class TimedMatrix {
 public:
  TimedMatrix(ThreadPool& pool, GgmlType type, const WeightsSettings& s)
      : type_(type),
        matrix_(shape_of(type, s.compute, s.n_in, s.bytes)),
        weights_(matrix_.n_bytes()),
        products_(pool, {.plain = plain_of(matrix_.type),
                         .quantized = matrix_.type == Compute::kInt8,
                         .max_rows = *std::max_element(s.n_rows.begin(), s.n_rows.end()),
                         .n_in = {s.n_in}}) {
    matrix_.data = weights_.data();
    fill(pool);
    for (const uint32_t n_rows : s.n_rows) rows_.push_back(row(n_rows));
    samples_.resize(rows_.size());
  }

  uint64_t largest_output() const {
    uint64_t n = 0;
    for (const WeightsRow& r : rows_) n = std::max(n, uint64_t{r.n_rows} * r.n_out);
    return n;
  }
  // The first call of a kind pays for what later ones find ready: it is not counted.
  void sample(const std::vector<float>& x, std::vector<float>& y, bool counts) {
    using Clock = std::chrono::steady_clock;
    for (size_t i = 0; i < rows_.size(); ++i) {
      PanelMatrix part = matrix_;
      part.n_out = rows_[i].n_out;
      const std::array<PanelProducts::Product, 1> product = {{{.w = &part, .y = y.data()}}};
      const auto start = Clock::now();
      products_.multiply(x.data(), rows_[i].n_rows, product);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (counts) samples_[i].push_back(seconds);
    }
  }
  void report(std::vector<WeightsRow>& out) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].seconds = typical(samples_[i], 1);
      out.push_back(rows_[i]);
    }
  }

 private:
  static std::optional<Compute> plain_of(Compute compute) {
    return compute == Compute::kInt8 ? std::nullopt : std::optional<Compute>(compute);
  }

  void fill(ThreadPool& pool) {
    const uint32_t n_in = matrix_.n_in;
    const std::vector<float> values = random_values(size_t{kPanelRows} * n_in, 1);
    std::vector<std::byte> rows(values.size() / block_elements(type_) * block_bytes(type_));
    quantize(type_, values.data(), rows.data(), values.size());
    const GgufTensor tensor{"weights",   type_,         {n_in, kPanelRows},
                            rows.data(), values.size(), rows.size()};
    std::vector<std::byte> panel(matrix_.panel_bytes());
    PanelMatrix first = matrix_;
    first.n_out = kPanelRows;
    first.data = panel.data();
    const std::array<char, 24> kNoTensors = {'G', 'G', 'U', 'F', 3};
    const PanelSource source{&tensor, &first};
    load_panels({&source, 1}, pool,
                GgufFile::parse(std::as_bytes(std::span(kNoTensors)), "no file"));
    // By the worker that will read it, so that it lies on its node.
    pool.for_own_shares(matrix_.n_panels(), [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t p = begin; p < end; ++p)
        std::memcpy(matrix_.data + p * panel.size(), panel.data(), panel.size());
    });
  }

  WeightsRow row(uint32_t n_rows) const {
    PanelMatrix part = matrix_;
    if (n_rows > kMostFewRows) part.n_out = std::min(part.n_out, kManyRowsOutputs);
    WeightsRow out;
    out.type = type_;
    out.compute = matrix_.type;
    out.n_rows = n_rows;
    out.n_out = part.n_out;
    out.bytes = part.n_bytes() + sizeof(float) * n_rows * (uint64_t{part.n_in} + part.n_out);
    out.multiply_adds = uint64_t{n_rows} * part.n_in * part.n_out;
    return out;
  }

  GgmlType type_;
  PanelMatrix matrix_;
  Region weights_;
  PanelProducts products_;
  std::vector<WeightsRow> rows_;
  std::vector<std::vector<double>> samples_;
};

}  // namespace

double WeightsRow::bytes_per_second() const { return static_cast<double>(bytes) / seconds.middle; }

double WeightsRow::multiply_adds_per_second() const {
  return static_cast<double>(multiply_adds) / seconds.middle;
}

WeightsReport measure_weights(ThreadPool& pool, const WeightsSettings& s) {
  for (const GgmlType type : s.types)
    if (s.n_in == 0 || s.n_in % block_elements(type) != 0)
      throw input_error("--n-in " + std::to_string(s.n_in) + ": " + name(type) +
                        " needs a multiple of " + std::to_string(block_elements(type)));
  std::vector<std::unique_ptr<TimedMatrix>> matrices;
  uint64_t largest = 0;
  for (const GgmlType type : s.types) {
    matrices.push_back(std::make_unique<TimedMatrix>(pool, type, s));
    largest = std::max(largest, matrices.back()->largest_output());
  }
  const uint32_t most_rows = *std::max_element(s.n_rows.begin(), s.n_rows.end());
  const std::vector<float> x = random_values(size_t{most_rows} * s.n_in, 2);
  std::vector<float> y(largest);
  LimitMeter limits(pool);
  ProgressBar bar("weights");
  for (uint32_t repetition = 0; repetition <= s.n_repetitions; ++repetition) {
    for (const auto& matrix : matrices) {
      matrix->sample(x, y, repetition > 0);
      stop_if_interrupted();
    }
    if (repetition > 0) limits.sample();
    bar.update(repetition, s.n_repetitions);
  }
  WeightsReport out;
  out.n_in = s.n_in;
  out.n_repetitions = s.n_repetitions;
  out.limits = limits.limits();
  for (const auto& matrix : matrices) matrix->report(out.rows);
  return out;
}

}  // namespace kvasir::tool
