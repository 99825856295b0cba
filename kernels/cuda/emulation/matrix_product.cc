// Products of the emulated device: loops over memory whose bounds are checked.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matrix_product.h"

#include <bit>
#include <vector>

#include "kernels/cuda/emulation/capture.h"
#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/emulation/memory.h"

namespace kvasir::cuda {
namespace {

constexpr uint64_t kWorkspaceBytes = 256;

template <class T>
T* checked(uint64_t address, uint64_t n) {
  auto* at = std::bit_cast<T*>(address);
  emulation::Region* region = emulation::region_of(at);
  if (!region)
    throw emulation::Fault(emulation::FaultKind::kBounds, "a matrix that is in no allocation");
  region->check(at, n * sizeof(T), alignof(T), emulation::Touch::kRead);
  return at;
}

std::vector<float> floats(uint64_t address, uint64_t n) {
  const uint16_t* bits = checked<uint16_t>(address, n);
  std::vector<float> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{bits[i]} << 16);
  return out;
}

void compute(const MatrixProduct& p) {
  const std::vector<float> x = floats(p.x, uint64_t{p.n_rows} * p.n_in);
  const std::vector<float> w = floats(p.w, uint64_t{p.n_out} * p.n_in);
  float* y = checked<float>(p.y, (p.n_rows - 1) * p.y_stride + p.n_out);
  for (uint64_t r = 0; r < p.n_rows; ++r) {
    for (uint64_t o = 0; o < p.n_out; ++o) {
      double sum = p.accumulates ? double{y[r * p.y_stride + o]} : 0.0;
      for (uint64_t i = 0; i < p.n_in; ++i)
        sum += double{x[r * p.n_in + i]} * double{w[o * p.n_in + i]};
      y[r * p.y_stride + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace

struct MatrixProducts::Handle {
  Stream stream;
};

MatrixProducts::MatrixProducts(Stream stream, void* workspace)
    : handle_(std::make_unique<Handle>(stream)) {
  checked<std::byte>(std::bit_cast<uint64_t>(workspace), kWorkspaceBytes);
}
MatrixProducts::~MatrixProducts() = default;
uint64_t MatrixProducts::workspace_bytes() { return kWorkspaceBytes; }

void MatrixProducts::multiply(const MatrixProduct& p) {
  if (p.n_rows == 0 || p.n_out == 0) return;
  emulation::give(handle_->stream, [p] { compute(p); });
}

}  // namespace kvasir::cuda
