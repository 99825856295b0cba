// Products by cuBLAS. Its matrices are column by column: x and w, read so, are transposed.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matrix_product.h"

#include <cublas_v2.h>

#include <string>

namespace kvasir::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string("cuBLAS cannot ") + what + ": " + cublasGetStatusString(status),
              status == CUBLAS_STATUS_ALLOC_FAILED);
}

// What NVIDIA recommends for Hopper; older devices take less.
constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

const void* pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

struct MatrixProducts::Handle {
  cublasHandle_t cublas = nullptr;
  Handle() { check(cublasCreate(&cublas), "start"); }
  ~Handle() { cublasDestroy(cublas); }
  Handle(const Handle&) = delete;
};

MatrixProducts::MatrixProducts(Stream stream, void* workspace)
    : handle_(std::make_unique<Handle>()) {
  check(cublasSetStream(handle_->cublas, static_cast<cudaStream_t>(stream.handle)),
        "take a stream");
  check(cublasSetWorkspace(handle_->cublas, workspace, kWorkspaceBytes), "take its workspace");
}
MatrixProducts::~MatrixProducts() = default;
uint64_t MatrixProducts::workspace_bytes() { return kWorkspaceBytes; }

void MatrixProducts::multiply(const MatrixProduct& p) {
  if (p.n_rows == 0 || p.n_out == 0) return;
  const float one = 1.0f, beta = p.accumulates ? 1.0f : 0.0f;
  const auto rows = static_cast<int>(p.n_rows), in = static_cast<int>(p.n_in);
  check(cublasGemmEx(handle_->cublas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(p.n_out), rows, in,
                     &one, pointer(p.w), CUDA_R_16BF, in, pointer(p.x), CUDA_R_16BF, in, &beta,
                     reinterpret_cast<void*>(p.y), CUDA_R_32F, static_cast<int>(p.y_stride),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "multiply matrices");
}

}  // namespace kvasir::cuda
