// See layer_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu/layer_bench.h"

#include <cstdio>
#include <vector>

#include "core/model/cuda/device_products.h"
#include "core/model/layers/device_layers.h"
#include "kernels/cuda/stream_read.h"
#include "tools/gpu/bench.h"

namespace kvasir::bench {
namespace {

struct Weights {
  const char* name;
  cuda::WeightType type;
  uint32_t block_elements, block_bytes;
};

// The matrices of a layer in one allocation of small numbers, and rows of their inputs and outputs.
class Layer {
 public:
  Layer(const LayerCase& c, const Weights& weights, uint32_t most_rows)
      : weights_(weights),
        rows_(bytes_of_all(c)),
        x_(uint64_t{4} * most_rows * c.d_ff),
        y_(uint64_t{4} * most_rows * c.d_ff),
        rounded_(uint64_t{2} * most_rows * c.d_ff),
        tile_(kTileBytes),
        workspace_(cuda::MatrixProducts::workspace_bytes()),
        products_({}, {rounded_.address(), tile_.address(), kTileBytes, workspace_.address()}) {
    cuda::fill_words(rows_.data, bytes_of_all(c) / 4, cuda::kHalfPair, cuda::kRandomHalfPair, {});
    cuda::fill_words(x_.data, uint64_t{most_rows} * c.d_ff, 0x3dcccccdu, 0x807fffffu,
                     {});  // about 0.1
    for (const auto& [n_in, n_out] : shapes(c)) add(n_in, n_out);
  }
  uint64_t weight_bytes() const { return used_; }
  uint64_t n_weights() const { return n_weights_; }
  double seconds(uint32_t n, uint32_t n_runs) {
    return seconds_in_a_row(
        [&](uint32_t) {
          for (const MatrixOnDevice& w : matrices_) {
            const DeviceProducts::Product product{&w, y_.address()};
            products_.multiply(x_.address(), n, {&product, 1});
          }
        },
        n_runs);
  }

 private:
  static constexpr uint64_t kTileBytes = DeviceBuffers::kMostTileBytes;
  using Shape = std::pair<uint32_t, uint32_t>;
  static std::vector<Shape> shapes(const LayerCase& c) {
    return {{c.d_model, c.d_model}, {c.d_model, c.kv_width}, {c.d_model, c.kv_width},
            {c.d_model, c.d_model}, {c.d_model, c.d_ff},     {c.d_model, c.d_ff},
            {c.d_ff, c.d_model}};
  }
  uint64_t row_bytes(uint32_t n_in) const {
    return uint64_t{n_in} / weights_.block_elements * weights_.block_bytes;
  }
  uint64_t bytes_of_all(const LayerCase& c) const {
    uint64_t bytes = 0;
    for (const auto& [n_in, n_out] : shapes(c)) bytes += row_bytes(n_in) * n_out;
    return bytes;
  }
  void add(uint32_t n_in, uint32_t n_out) {
    matrices_.push_back({weights_.type, n_in, n_out, row_bytes(n_in), rows_.address() + used_});
    used_ += row_bytes(n_in) * n_out;
    n_weights_ += uint64_t{n_in} * n_out;
  }

  Weights weights_;
  uint64_t used_ = 0, n_weights_ = 0;
  Memory rows_, x_, y_, rounded_, tile_, workspace_;
  DeviceProducts products_;
  std::vector<MatrixOnDevice> matrices_;
};

}  // namespace

void print_layers(const LayerCase& c, double bandwidth, uint32_t n_runs) {
  std::printf("\n%-22s %8s %10s %10s %10s %11s %10s\n", "products of a layer", "tokens", "MB", "ms",
              "GB/s", "of reads", "TFLOP/s");
  for (const Weights& weights : {Weights{"bf16", cuda::WeightType::kBF16, 1, 2},
                                 Weights{"q8_0", cuda::WeightType::kQ8_0, 32, 34},
                                 Weights{"q4_k", cuda::WeightType::kQ4_K, 256, 144},
                                 Weights{"q6_k", cuda::WeightType::kQ6_K, 256, 210},
                                 Weights{"q4_0", cuda::WeightType::kQ4_0, 32, 18}}) {
    Layer layer(c, weights, c.prompt_tokens);
    for (const uint32_t n : {1u, 4u, 8u, c.prompt_tokens}) {
      const double seconds = layer.seconds(n, n_runs);
      const auto bytes = static_cast<double>(layer.weight_bytes());
      std::printf("%-22s %8u %10.1f %10.3f %10.0f %9.1f %% %10.1f\n", weights.name, n, bytes / 1e6,
                  seconds * 1e3, bytes / seconds / 1e9, 100.0 * bytes / seconds / bandwidth,
                  2.0 * n * static_cast<double>(layer.n_weights()) / seconds / 1e12);
    }
  }
}

}  // namespace kvasir::bench
