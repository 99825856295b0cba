// InfiniGen: one layer ahead, score every token with a few columns of skewed queries and keys, and
// attend to those near the best. Lee et al. 2024, arXiv:2406.19707.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/infinigen/infinigen.h"

#include <xxhash.h>

#include <numeric>

#include "plugins/selector/infinigen/skew_file.h"
#include "plugins/shared/layers.h"

namespace kvasir::infinigen {

void InfiniGen::bind(const kvasir_geometry& geometry) {
  geometry_ = geometry;
  keys_ = sdk::LeasedKeys(geometry);
  n_decode_ = columns_of(o_.ratio);
  n_prefill_ = o_.slice_tokens == 0 ? 0 : columns_of(o_.ratio_prefill);
  if (o_.budget > 0) {
    host_.log(KVASIR_LOG_INFO, "budget = " + std::to_string(o_.budget) +
                                   " of the tokens cached: budget_tokens = " +
                                   std::to_string(share(geometry.max_context)) + " at " +
                                   std::to_string(geometry.max_context));
  }
  format_.type = o_.type;
  format_.n_columns = o_.columns == ColumnScore::kUnion
                          ? std::min(2 * std::max(n_decode_, n_prefill_), geometry.head_dim)
                          : std::max(n_decode_, n_prefill_);
  std::vector<float> sums;
  if (!o_.skew_file.empty()) {
    SkewFile file = load_skew_file(o_.skew_file, geometry);
    skew_ = std::move(file.matrices);
    sums = std::move(file.sums);
  } else if (o_.slice_tokens != 0) {
    sdk::fail_invalid(
        "prefill_select_tokens needs a skew_file: before the prompt's end only "
        "its first columns are known to matter");
  }
  if (o_.skew_file.empty() && o_.skew_tokens == 0) {
    host_.log(
        KVASIR_LOG_WARN,
        "no skew_file, no skew_tokens: the columns are those of queries and keys as they are; "
        "skew_tokens = 256 makes them say more, or `kvasir model skew` where keys have no "
        "RoPE");
  }
  fresh_.layers.resize(geometry.n_layers);
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer) {
    if (sdk::is_dense_layer(geometry, layer)) continue;
    Head head;
    head.q_sum.resize(n_sums());
    if (sums_keys()) head.k_sum.resize(geometry.head_dim);
    if (o_.refresh_every != 0) head.recent.resize(n_sums());
    if (o_.slice_tokens != 0 && !o_.offline_columns) {
      head.columns.resize(format_.n_columns);
      std::iota(head.columns.begin(), head.columns.end(), uint16_t{0});
    }
    auto& heads = fresh_.layers[layer].heads;
    heads.assign(geometry.n_kv_heads, head);
    for (uint32_t i = 0; o_.offline_columns && i < geometry.n_kv_heads; ++i) {
      const uint64_t dim = geometry.head_dim, at = uint64_t{layer} * geometry.n_kv_heads + i;
      const auto q = sums.begin() + static_cast<ptrdiff_t>(at * 2 * dim);
      const auto k = q + static_cast<ptrdiff_t>(dim);
      heads[i].columns = best_columns({q, k}, {k, k + static_cast<ptrdiff_t>(dim)});
    }
  }
}

void InfiniGen::limits(kvasir_sel_limits& out) const {
  out.unit = KVASIR_UNIT_TOKEN;
  out.scope = KVASIR_SCOPE_KV_HEAD;
  if (o_.budget > 0)
    out.expected_units = share(geometry_.max_context);
  else
    out.max_units = o_.budget_tokens;
  out.memory.state_bytes = state_bytes();
  out.speculation.layers_ahead = o_.speculate_ahead;
  out.prefill.last_queries = o_.offline_columns    ? 0
                             : o_.skew_tokens != 0 ? o_.skew_tokens
                                                   : KVASIR_ALL_QUERIES;
  out.prefill.slice_tokens = o_.slice_tokens;
  if (o_.pool_limit == 0) return;
  out.plans.at = KVASIR_PLAN_AT_STEP_END;
  out.plans.action = KVASIR_ACTION_EVICT;
  out.mass.at = KVASIR_MASS_AT_DECODE;
  out.mass.level = KVASIR_MASS_LISTS;
  out.mass.reduce = KVASIR_MASS_SUM_KV_HEAD;
}

void InfiniGen::layout(kvasir_layout& out) const {
  out.flags =
      KVASIR_LAYOUT_READS_NEW | (o_.offline_columns ? 0u : uint32_t{KVASIR_LAYOUT_PROMPT_END_ALL});
  out.record_bytes = (geometry_.block_size * format_.key_bytes() + 3) / 4 * 4;
  out.refresh_tokens = o_.refresh_every;
  out.format =
      XXH3_64bits_withSeed(skew_.data(), skew_.size() * sizeof(float),
                           uint64_t{o_.skew_tokens != 0} << 63 | uint64_t{format_.n_columns} << 8 |
                               static_cast<uint64_t>(format_.type));
}

}  // namespace kvasir::infinigen

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.infinigen", "0.1.0", kvasir::infinigen::InfiniGen)
