// Jacobi's method; see symmetric_eigen.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/symmetric_eigen.h"

#include <algorithm>
#include <cmath>

namespace kvasir::kernels {
namespace {

// Rows p and q become c p - s q and s p + c q.
void rotate_rows(double* row_p, double* row_q, size_t n, double c, double s) {
  for (size_t i = 0; i < n; ++i) {
    const double p = row_p[i], q = row_q[i];
    row_p[i] = c * p - s * q;
    row_q[i] = s * p + c * q;
  }
}

// The rotation that makes a[p, q] zero, applied to both sides of a and to the vectors.
void annihilate(double* a, size_t n, size_t p, size_t q, double* vector) {
  const double apq = a[p * n + q];
  const double theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
  const double t = (theta >= 0 ? 1.0 : -1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1.0));
  const double c = 1.0 / std::sqrt(t * t + 1.0), s = t * c;
  const double app = a[p * n + p] - t * apq, aqq = a[q * n + q] + t * apq;
  rotate_rows(a + p * n, a + q * n, n, c, s);
  for (size_t i = 0; i < n; ++i) {  // the columns are the rows again
    a[i * n + p] = a[p * n + i];
    a[i * n + q] = a[q * n + i];
  }
  a[p * n + p] = app;
  a[q * n + q] = aqq;
  a[p * n + q] = a[q * n + p] = 0.0;
  rotate_rows(vector + p * n, vector + q * n, n, c, s);
}

double off_diagonal(const double* a, size_t n) {
  double sum = 0.0;
  for (size_t p = 0; p < n; ++p)
    for (size_t q = p + 1; q < n; ++q) sum += a[p * n + q] * a[p * n + q];
  return sum;
}

}  // namespace

void symmetric_eigen(double* a, size_t n, double* value, double* vector) {
  constexpr int kMaxSweeps = 40;  // converges quadratically: ten are many
  std::fill(vector, vector + n * n, 0.0);
  double size = 0.0;
  for (size_t i = 0; i < n; ++i) {
    vector[i * n + i] = 1.0;
    size += a[i * n + i] * a[i * n + i];
  }
  size += 2.0 * off_diagonal(a, n);
  for (int sweep = 0; sweep < kMaxSweeps && off_diagonal(a, n) > 1e-30 * size; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q)
        if (a[p * n + q] != 0.0) annihilate(a, n, p, q, vector);
  for (size_t i = 0; i < n; ++i) value[i] = a[i * n + i];
  for (size_t i = 0; i < n; ++i) {
    const auto best = static_cast<size_t>(std::max_element(value + i, value + n) - value);
    if (best == i) continue;
    std::swap(value[i], value[best]);
    std::swap_ranges(vector + i * n, vector + (i + 1) * n, vector + best * n);
  }
}

}  // namespace kvasir::kernels
