// One call of a prefill kernel beside what the double-precision oracle makes of the same queries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "kernels/attention_prefill.h"
#include "tests/kernels/rows.h"

namespace kvasir::test {

inline kernels::AttentionShape prefill_shape(uint32_t group_size, uint32_t head_dim, uint32_t v_dim,
                                             kernels::ElementType type) {
  kernels::AttentionShape shape;
  shape.group_size = group_size;
  shape.head_dim = head_dim;
  shape.v_dim = v_dim;
  shape.k_type = type;
  shape.v_type = type;
  shape.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return shape;
}

inline std::vector<uint32_t> ascending(size_t n, uint32_t first) {
  std::vector<uint32_t> pos(n);
  std::iota(pos.begin(), pos.end(), first);
  return pos;
}

// Queries of a model with two kv heads, of which the work item is the first: strides are real.
struct PrefillCall {
  kernels::AttentionShape shape;
  size_t n_q;
  kernels::PositionMask mask;
  std::span<const kernels::KvRows> items;
  std::vector<float> q;

  PrefillCall(const kernels::AttentionShape& s, size_t n, const kernels::PositionMask& m,
              std::span<const kernels::KvRows> rows, uint32_t seed)
      : shape(s), n_q(n), mask(m), items(rows), q(random_floats(n * q_stride(), 1.0f, seed)) {}

  size_t q_stride() const { return 2 * shape.group_size * shape.head_dim; }
  size_t o_stride() const { return 2 * shape.group_size * shape.v_dim; }
  size_t lse_stride() const { return 2 * shape.group_size; }

  struct Expected {
    std::vector<double> o, lse;  // [n_q][group_size][v_dim], [n_q][group_size]
  };
  // Computed when it is asked for first: where no target has the kernel, nobody asks.
  const Expected& expected() const {
    if (!expected_) expected_ = compute();
    return *expected_;
  }
  Expected compute() const {
    const size_t n_o = shape.group_size * shape.v_dim;
    Expected e{std::vector<double>(n_q * n_o), std::vector<double>(n_q * shape.group_size)};
    for (size_t i = 0; i < n_q; ++i) {
      kernels::reference::attention(shape, q.data() + i * q_stride(), i, mask, items, &e.o[i * n_o],
                                    &e.lse[i * shape.group_size]);
    }
    return e;
  }

  struct Result {
    std::vector<float> o, lse;
  };
  // Checks that the other kv head's results stay untouched.
  template <class Bytes, class Kernel>
  Result run(const Bytes& scratch_bytes, const Kernel& kernel) const {
    std::vector<float> out(n_q * o_stride(), 9.0f);
    std::vector<float> out_lse(n_q * lse_stride(), 9.0f);
    Scratch scratch(scratch_bytes(shape, n_q));
    kernels::QueryTile tile;
    tile.q = q.data();
    tile.o = out.data();
    tile.lse = out_lse.data();
    tile.n_q = n_q;
    tile.q_stride = q_stride();
    tile.o_stride = o_stride();
    tile.lse_stride = lse_stride();
    tile.mask = mask;
    kernel(shape, tile, items, scratch.get());
    Result mine;
    bool others_untouched = true;
    const size_t n_o = shape.group_size * shape.v_dim;
    for (size_t i = 0; i < n_q; ++i) {
      const auto row = out.begin() + static_cast<ptrdiff_t>(i * o_stride());
      const auto row_lse = out_lse.begin() + static_cast<ptrdiff_t>(i * lse_stride());
      mine.o.insert(mine.o.end(), row, row + static_cast<ptrdiff_t>(n_o));
      mine.lse.insert(mine.lse.end(), row_lse, row_lse + shape.group_size);
      others_untouched = others_untouched && row[static_cast<ptrdiff_t>(n_o)] == 9.0f &&
                         row_lse[shape.group_size] == 9.0f;
    }
    CHECK(others_untouched);
    return mine;
  }

 private:
  mutable std::optional<Expected> expected_;
};

}  // namespace kvasir::test
