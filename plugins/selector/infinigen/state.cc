// Cutting, saving and loading; see state.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/infinigen/state.h"

#include <algorithm>
#include <cmath>

namespace kvasir::infinigen {
namespace {

constexpr uint64_t kStateFormat = 0x326e656769666e69;  // "infigen2"

// All columns that are used, or none.
std::vector<float> load_skew(const StateShape& shape, sdk::StateReader& in) {
  const uint64_t n = uint64_t{shape.n_columns} * shape.head_dim;
  auto out = in.take_list<float>(shape.makes_skew ? n : 0, "the skew");
  const bool is_finite =
      std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
  if ((!out.empty() && out.size() != n) || !is_finite) in.damaged("the skew is no matrix");
  return out;
}

}  // namespace

void State::truncate(uint32_t kv_len) {
  if (kv_len == 0) layers.clear();
  for (Layer& layer : layers) {
    layer.counted = std::min(layer.counted, kv_len);
    for (Head& head : layer.heads) {
      if (head.used.size() > kv_len) head.used.resize(kv_len);
    }
  }
}

void save_state(const State& state, const StateShape& shape, sdk::StateWriter& out) {
  out.put(kStateFormat);
  out.put(shape.n_layers);
  out.put(shape.n_kv_heads);
  out.put(shape.head_dim);
  out.put(shape.n_columns);
  for (const Layer& layer : state.layers) {
    out.put(layer.counted);
    for (const Head& of : layer.heads) {
      out.put_list(of.q_sum);
      out.put_list(of.k_sum);
      out.put_list(of.recent);
      out.put_list(of.own_skew);
      out.put_list(of.columns);
      out.put_list(of.used);
    }
  }
}

State load_state(State state, const StateShape& shape, sdk::StateReader& in) {
  in.expect(kStateFormat, "the format");
  in.expect(shape.n_layers, "n_layers");
  in.expect(shape.n_kv_heads, "n_kv_heads");
  in.expect(shape.head_dim, "head_dim");
  in.expect(shape.n_columns, "the number of columns");
  for (Layer& layer : state.layers) {
    layer.counted = in.take<uint32_t>();
    for (Head& of : layer.heads) {
      of.q_sum = in.take_numbers<double>(of.q_sum.size(), !shape.makes_skew, "query sums");
      of.k_sum = in.take_numbers<double>(of.k_sum.size(), true, "key sums");
      of.recent = in.take_numbers<double>(of.recent.size(), !shape.makes_skew, "recent sums");
      of.own_skew = load_skew(shape, in);
      of.columns = in.take_list<uint16_t>(shape.n_columns, "the column list");
      std::vector<bool> taken(shape.head_dim);
      for (const uint16_t c : of.columns) {
        const uint32_t end = of.own_skew.empty() ? shape.head_dim : shape.n_columns;
        if (c >= end || taken[c]) in.damaged("a column is out of range or double");
        taken[c] = true;
      }
      of.used = in.take_list<uint32_t>(shape.max_context, "the pool's counters");
    }
  }
  return state;
}

}  // namespace kvasir::infinigen
