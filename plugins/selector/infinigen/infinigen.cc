// InfiniGen: one layer ahead, score every token with a few columns of skewed queries and keys, and
// attend to those near the best. Lee et al. 2024, arXiv:2406.19707.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/topk.h"
#include "plugins/sdk/queries.h"
#include "plugins/sdk/sequences.h"
#include "plugins/sdk/state.h"
#include "plugins/sdk/vector_records.h"
#include "plugins/selector/infinigen/options.h"
#include "plugins/selector/infinigen/partial_index.h"
#include "plugins/selector/infinigen/skew_file.h"

namespace {
using namespace kvasir;
using namespace kvasir::infinigen;

constexpr uint64_t kStateFormat = 0x316e656769666e69;  // "infigen1"
constexpr uint32_t kChunk = 4096;                      // candidates per task of scoring
constexpr uint32_t kBatch = 16;                        // keys skewed at a time
constexpr uint32_t kSaturated = UINT16_MAX;

// What is kept per sequence, layer and kv head beside the records in the host's slab.
struct Head {
  std::vector<double> q_sum, k_sum, recent;  // [head_dim] sums of |q A|, |k A|; q since the refresh
  std::vector<uint16_t> columns;             // most important first; empty: not chosen yet
  std::vector<uint32_t> used;                // [token] of the pool: hits, or kv_len of the last one
};
struct Layer {
  std::vector<Head> heads;
  uint32_t counted =
      0;  // kv_len of the last decode query in `recent`: a repeated call adds nothing
};
struct State {
  std::vector<Layer> layers;  // empty: as new
  // Sums keep what the forgotten queries added; columns stay, and so do the records.
  void truncate(uint32_t kv_len) {
    if (kv_len == 0) layers.clear();
    for (Layer& layer : layers) {
      layer.counted = std::min(layer.counted, kv_len);
      for (Head& head : layer.heads) {
        if (head.used.size() > kv_len) head.used.resize(kv_len);
      }
    }
  }
};

void add_absolute(const float* values, size_t n, size_t width, std::vector<double>& sum) {
  for (size_t i = 0; i < n * width; ++i) sum[i % width] += std::abs(values[i]);
}

class InfiniGen : public sdk::Sequences<State> {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.infinigen",
       .version = "0.1.0",
       .name = "InfiniGen",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Speculates one layer ahead with partial skewed keys which tokens matter.",
       .options = kOptions,
       .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
       .needs = KVASIR_NEED_TOKEN_ROWS,
       .dtypes = sdk::kKeyTypes});

  InfiniGen(const sdk::Host& host, const sdk::Options& options) : host_(host), o_(options) {}

  void validate(const kvasir_geometry& geometry) const {
    if (geometry.k_state == KVASIR_K_UNROTATED) {
      sdk::fail_invalid(
          "infinigen scores keys as attention sees them, after RoPE; another plugin "
          "of this strategy wants them stored before it: use one of the two");
    }
  }

  void bind(const kvasir_geometry& geometry) {
    geometry_ = geometry;
    for (const auto& format :
         sdk::Strided(geometry.formats, geometry.n_formats, geometry.format_size)) {
      if (!(sdk::kKeyTypes & KVASIR_DTYPE_BIT(format.dtype_k))) {
        throw sdk::Error(KVASIR_ERR_UNSUPPORTED, "infinigen reads keys of f32, f16 or bf16");
      }
      formats_.push_back(format);
    }
    n_decode_ = columns_of(o_.ratio);
    n_prefill_ = o_.slice_tokens == 0 ? 0 : columns_of(o_.ratio_prefill);
    rows_.type = o_.type;
    rows_.n_columns = o_.columns == ColumnScore::kUnion
                          ? std::min(2 * std::max(n_decode_, n_prefill_), geometry.head_dim)
                          : std::max(n_decode_, n_prefill_);
    if (!o_.skew_file.empty()) {
      skew_ = load_skew_file(o_.skew_file, geometry);
    } else if (o_.slice_tokens != 0) {
      sdk::fail_invalid(
          "prefill_select_tokens needs a skew_file: before the prompt's end only "
          "its first columns are known to matter");
    }
    fresh_.layers.resize(geometry.n_layers);
    for (uint32_t layer = 0; layer < geometry.n_layers; ++layer) {
      if (geometry.dense_layers && geometry.dense_layers[layer / 64] >> (layer % 64) & 1) continue;
      Head head;
      head.q_sum.resize(geometry.head_dim);
      if (o_.columns != ColumnScore::kQuery) head.k_sum.resize(geometry.head_dim);
      if (o_.refresh_every != 0) head.recent.resize(geometry.head_dim);
      if (o_.slice_tokens != 0) {
        head.columns.resize(rows_.n_columns);
        std::iota(head.columns.begin(), head.columns.end(), uint16_t{0});
      }
      fresh_.layers[layer].heads.assign(geometry.n_kv_heads, head);
    }
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    out.max_units = o_.budget > 0 ? 0 : o_.budget_tokens;
    out.speculate_ahead = o_.speculate_ahead;
    out.prefill_last_queries = UINT32_MAX;
    if (o_.slice_tokens != 0) {
      out.flags = KVASIR_LIMIT_PREFILL_SELECT;
      out.prefill_slice_tokens = o_.slice_tokens;
    }
    if (o_.pool_limit == 0) return;
    out.plan_at = KVASIR_PLAN_AT_STEP_END;
    out.action = KVASIR_ACTION_EVICT;
    out.mass_at = KVASIR_MASS_AT_DECODE;
    out.mass_level = KVASIR_MASS_ROWS;
    out.mass_reduce = KVASIR_MASS_SUM_KV_HEAD;
  }

  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_PROMPT_END_ALL;
    out.record_bytes = (geometry_.block_size * rows_.row_bytes() + 3) / 4 * 4;
    out.refresh_tokens = o_.refresh_every;
    out.format =
        XXH3_64bits_withSeed(skew_.data(), skew_.size() * sizeof(float),
                             uint64_t{rows_.n_columns} << 8 | static_cast<uint64_t>(rows_.type));
  }

  void prefill(const sdk::Step& step, const kvasir_sel_in& in) {
    begin(step);
    const sdk::Queries queries(in.q, geometry_.n_q_heads, geometry_.head_dim);
    each_head(step, [&](uint32_t r, uint32_t kv_head) {
      const kvasir_step_row& row = step.row(r);
      add_queries(
          step.layer(), kv_head, row.n_q, head(row.seq, step.layer(), kv_head).q_sum,
          [&](uint32_t i) { return queries.head(row.q_begin + i, kv_head * group_size()); });
    });
  }

  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    begin(step);
    if (o_.columns != ColumnScore::kQuery && step.raw().moment != KVASIR_D5) sum_keys(step, items);
    std::vector<bool> choose(step.n_rows());
    for (const kvasir_update_item& item : items) {
      if (item.flags & KVASIR_ITEM_PROMPT_END) choose[item.row] = true;
    }
    for (uint32_t r = 0; r < step.n_rows(); ++r) {
      if (choose[r]) choose_columns(step, r);
    }
    host_.parallel_for(items.size() * geometry_.n_kv_heads, 4,
                       [&](uint64_t begin, uint64_t end, uint32_t) {
                         for (uint64_t i = begin; i < end; ++i) {
                           write(step, items[i / geometry_.n_kv_heads],
                                 static_cast<uint32_t>(i % geometry_.n_kv_heads));
                         }
                       });
  }

  kvasir_status speculate(const sdk::Step& step, uint32_t target_layer, const kvasir_sel_in& in,
                          kvasir_selection& out) {
    const kvasir_status status = choose_tokens(step, target_layer, in, out);
    if (status == KVASIR_OK) out.flags |= KVASIR_SELECTION_FINAL;
    return status;
  }
  // The layer's own query: where nothing was speculated, and in prefill.
  kvasir_status select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    return choose_tokens(step, step.layer(), in, out);
  }

  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    begin(step);
    for (uint32_t r = 0; r < step.n_rows(); ++r) {
      const kvasir_step_row& row = step.row(r);
      for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
        auto& used = head(row.seq, step.layer(), kv_head).used;
        used.resize(std::max<size_t>(used.size(), row.unit_end));
        const uint64_t* at = mass.row_offsets + uint64_t{r} * geometry_.n_kv_heads + kv_head;
        for (uint64_t i = at[0]; i < at[1]; ++i) {
          const uint32_t token = mass.index ? mass.index[i] : static_cast<uint32_t>(i - at[0]);
          if (token >= row.unit_begin && token < row.unit_end) hit(used, token, row.kv_len);
        }
      }
    }
  }

  // The pool's victims: fewest hits, or longest not used; then the oldest. What is dead already is
  // no candidate.
  void evict_plan(const sdk::Step& step, kvasir_selection& out) {
    begin(step);
    const uint32_t n_heads = geometry_.n_kv_heads;
    sdk::lay_out_rows(out, KVASIR_SCOPE_KV_HEAD, step.n_rows() * n_heads, [&](uint32_t i) {
      const uint64_t n = step.candidates(i / n_heads, i % n_heads).size();
      return n > o_.pool_limit ? n - o_.pool_limit : 0;
    });
    each_head(step, [&](uint32_t r, uint32_t kv_head) {
      const sdk::Candidates from = step.candidates(r, kv_head);
      const auto& used = head(step.row(r).seq, step.layer(), kv_head).used;
      std::vector<float> rarity(from.size());
      for (uint64_t i = 0; i < from.size(); ++i) {
        rarity[i] = from[i] < used.size() ? -static_cast<float>(used[from[i]]) : 0.0f;
      }
      take_best(rarity.data(), from, sdk::row_indices(out, r * n_heads + kv_head));
    });
    out.flags |= KVASIR_SELECTION_DROP;
  }

  const void* get_extension(const char* id) const {
    return std::string(id) == KVASIR_EXT_STATE ? sdk::state_extension<InfiniGen>() : nullptr;
  }
  void save(uint64_t seq, sdk::StateWriter& out);
  void load(uint64_t seq, sdk::StateReader& in);

 private:
  uint32_t group_size() const { return geometry_.n_q_heads / geometry_.n_kv_heads; }
  // int(ratio * head_dim), as published.
  uint32_t columns_of(double ratio) const {
    const auto n = static_cast<uint32_t>(ratio * geometry_.head_dim);
    return std::clamp(n, 1u, geometry_.head_dim);
  }
  Skew skew(uint32_t layer, uint32_t kv_head) const {
    const uint64_t dim = geometry_.head_dim;
    const uint64_t at = (uint64_t{layer} * geometry_.n_kv_heads + kv_head) * dim * dim;
    return {skew_.empty() ? nullptr : skew_.data() + at, geometry_.head_dim};
  }
  // Before anything runs in parallel.
  void begin(const sdk::Step& step) {
    for (uint32_t r = 0; r < step.n_rows(); ++r) {
      State& state = state_of(step.row(r).seq);
      if (state.layers.empty()) state = fresh_;
    }
  }
  Head& head(uint64_t seq, uint32_t layer, uint32_t kv_head) {
    auto& heads = state_of(seq).layers.at(layer).heads;
    if (kv_head >= heads.size()) {
      sdk::fail_invalid("layer " + std::to_string(layer) + " is dense, and was called for");
    }
    return heads[kv_head];
  }
  sdk::Candidates candidates(const sdk::Step& step, uint32_t list) const {
    return step.candidates(list / geometry_.n_kv_heads, list % geometry_.n_kv_heads);
  }
  template <class Fn>
  void each_head(const sdk::Step& step, const Fn& fn) const {
    host_.parallel_for(uint64_t{step.n_rows()} * geometry_.n_kv_heads, 1,
                       [&](uint64_t begin, uint64_t end, uint32_t) {
                         for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
                           fn(i / geometry_.n_kv_heads, i % geometry_.n_kv_heads);
                         }
                       });
  }

  // Tokens in order, heads in order: the same sum however the prompt was cut.
  template <class Query>
  void add_queries(uint32_t layer, uint32_t kv_head, uint32_t n, std::vector<double>& sum,
                   const Query& query) const {
    std::vector<float> skewed(uint64_t{group_size()} * geometry_.head_dim), scratch;
    for (uint32_t i = 0; i < n; ++i) {
      project(skew(layer, kv_head), {}, query(i), group_size(), skewed.data(), scratch);
      add_absolute(skewed.data(), group_size(), geometry_.head_dim, sum);
    }
  }

  // fn(first token, n, keys [n][head_dim]) over tokens [begin, end) of an item's block.
  template <class Fn>
  void each_batch(const kvasir_update_item& item, uint32_t kv_head, uint32_t begin, uint32_t end,
                  const Fn& fn) const {
    if (begin >= end) return;
    const kvasir_lease* lease = item.lease;
    if (!lease || !lease->k || lease->format >= formats_.size() || end > geometry_.block_size) {
      sdk::fail_invalid("update: block " + std::to_string(item.block) + " has no keys");
    }
    const kvasir_kv_format& format = formats_[lease->format];
    const std::byte* k = sdk::head_keys(*lease, format, kv_head);
    const auto type = sdk::key_type({k, format.dtype_k, end, format.k_token_stride});
    std::vector<float> keys(uint64_t{kBatch} * geometry_.head_dim);
    for (uint32_t at = begin; at < end; at += kBatch) {
      const uint32_t n = std::min(kBatch, end - at);
      for (uint32_t i = 0; i < n; ++i) {
        kernels::convert_to_f32(type, k + (at + i) * format.k_token_stride,
                                keys.data() + uint64_t{i} * geometry_.head_dim, geometry_.head_dim);
      }
      fn(at, n, keys.data());
    }
  }

  void sum_keys(const sdk::Step& step, const sdk::UpdateItems& items) {
    each_head(step, [&](uint32_t r, uint32_t kv_head) {
      auto& sum = head(step.row(r).seq, step.layer(), kv_head).k_sum;
      std::vector<float> skewed(uint64_t{kBatch} * geometry_.head_dim), scratch;
      for (const kvasir_update_item& item : items) {
        if (item.row != r || !(item.flags & KVASIR_ITEM_NEW)) continue;
        each_batch(item, kv_head, item.first_new, item.first_new + item.n_new,
                   [&](uint32_t, uint32_t n, const float* keys) {
                     project(skew(step.layer(), kv_head), {}, keys, n, skewed.data(), scratch);
                     add_absolute(skewed.data(), n, geometry_.head_dim, sum);
                   });
      }
    });
  }

  void choose_columns(const sdk::Step& step, uint32_t r);
  void write(const sdk::Step& step, const kvasir_update_item& item, uint32_t kv_head);
  kvasir_status choose_tokens(const sdk::Step& step, uint32_t layer, const kvasir_sel_in& in,
                              kvasir_selection& out);
  void score_chunk(const sdk::Step& step, uint32_t layer, uint32_t list, uint64_t begin,
                   const float* q);
  uint32_t common_count(const sdk::Step& step, uint32_t r) const;
  void count_recent(const sdk::Step& step, uint32_t layer, const float* q);
  void take_best(const float* scores, const sdk::Candidates& from, std::span<uint32_t> row) const;
  void hit(std::vector<uint32_t>& used, uint32_t token, uint32_t kv_len) const;

  sdk::Host host_;
  OptionValues o_;
  kvasir_geometry geometry_{};
  std::vector<kvasir_kv_format> formats_;
  uint32_t n_decode_ = 0, n_prefill_ = 0;  // columns used per phase
  RowFormat rows_;
  std::vector<float> skew_;  // [layer][kv head][column][head_dim], or empty: identity
  State fresh_;
  // Of one call of choose_tokens(): candidates of list i have scores [offsets_[i], offsets_[i +
  // 1]).
  std::vector<uint64_t> offsets_;
  std::vector<float> scores_;
};

// The columns with the largest sums, first; equal sums: the lower column.
std::vector<uint16_t> largest(const std::vector<double>& sums, uint32_t n) {
  std::vector<uint16_t> order(sums.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return sums[a] > sums[b]; });
  order.resize(std::min<size_t>(n, order.size()));
  return order;
}

void InfiniGen::choose_columns(const sdk::Step& step, uint32_t r) {
  const bool refresh = step.raw().moment == KVASIR_D4;
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    Head& of = head(step.row(r).seq, step.layer(), kv_head);
    std::vector<double> sums = refresh ? of.recent : of.q_sum;
    std::fill(of.recent.begin(), of.recent.end(), 0.0);
    const bool seen = std::any_of(sums.begin(), sums.end(), [](double s) { return s > 0.0; });
    if (!seen && !of.columns.empty()) continue;
    if (o_.columns == ColumnScore::kQueryAndKey) {
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += of.k_sum[c];
    }
    const bool unite = o_.columns == ColumnScore::kUnion;
    of.columns = largest(sums, unite ? std::max(n_decode_, n_prefill_) : rows_.n_columns);
    if (!unite) continue;
    for (const uint16_t c : largest(of.k_sum, std::max(n_decode_, n_prefill_))) {
      if (of.columns.size() < rows_.n_columns &&
          std::find(of.columns.begin(), of.columns.end(), c) == of.columns.end()) {
        of.columns.push_back(c);
      }
    }
  }
}

void InfiniGen::write(const sdk::Step& step, const kvasir_update_item& item, uint32_t kv_head) {
  const bool all = item.flags & KVASIR_ITEM_PROMPT_END;
  const uint32_t begin = all ? 0 : item.first_new;
  const uint32_t end = all ? item.n_tokens : item.first_new + item.n_new;
  const auto& columns = head(step.row(item.row).seq, step.layer(), kv_head).columns;
  if (columns.empty() || begin >= end) return;
  std::byte* record = step.record(item.row, kv_head, item.block);
  if (!record) sdk::fail_invalid("update: block " + std::to_string(item.block) + " has no page");
  std::vector<float> values(uint64_t{kBatch} * columns.size()), scratch;
  each_batch(item, kv_head, begin, end, [&](uint32_t at, uint32_t n, const float* keys) {
    project(skew(step.layer(), kv_head), columns, keys, n, values.data(), scratch);
    for (uint32_t i = 0; i < n; ++i) {
      store_row(rows_, values.data() + i * columns.size(), columns.size(),
                record + (at + i) * rows_.row_bytes());
    }
  });
}

// Scores of all candidates, the number that all heads of a sequence share, the best of each head.
kvasir_status InfiniGen::choose_tokens(const sdk::Step& step, uint32_t layer,
                                       const kvasir_sel_in& in, kvasir_selection& out) {
  begin(step);
  const uint32_t n_heads = geometry_.n_kv_heads, n_lists = step.n_rows() * n_heads;
  const auto q = sdk::Queries(in.q, geometry_.n_q_heads, geometry_.head_dim).pooled(step);
  offsets_.assign(1, 0);
  std::vector<std::pair<uint32_t, uint64_t>> tasks;  // list, first candidate
  for (uint32_t i = 0; i < n_lists; ++i) {
    if (head(step.row(i / n_heads).seq, layer, i % n_heads).columns.empty()) return KVASIR_FALLBACK;
    const uint64_t n = candidates(step, i).size();
    offsets_.push_back(offsets_.back() + n);
    for (uint64_t at = 0; at < n; at += kChunk) tasks.emplace_back(i, at);
  }
  scores_.resize(offsets_.back());
  host_.parallel_for(tasks.size(), 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t t = begin; t < end; ++t) {
      score_chunk(step, layer, tasks[t].first, tasks[t].second, q.data());
    }
  });
  std::vector<uint32_t> counts;
  for (uint32_t r = 0; r < step.n_rows(); ++r) counts.push_back(common_count(step, r));
  sdk::lay_out_rows(out, KVASIR_SCOPE_KV_HEAD, n_lists, [&](uint32_t i) {
    return std::min<uint64_t>(counts[i / n_heads], offsets_[i + 1] - offsets_[i]);
  });
  each_head(step, [&](uint32_t r, uint32_t kv_head) {
    const uint32_t list = r * n_heads + kv_head;
    take_best(scores_.data() + offsets_[list], candidates(step, list), sdk::row_indices(out, list));
  });
  if (o_.refresh_every != 0 && step.raw().moment >= KVASIR_D1) count_recent(step, layer, q.data());
  return KVASIR_OK;
}

void InfiniGen::score_chunk(const sdk::Step& step, uint32_t layer, uint32_t list, uint64_t begin,
                            const float* q) {
  const uint32_t r = list / geometry_.n_kv_heads, kv_head = list % geometry_.n_kv_heads;
  const uint32_t group = group_size(), block_size = geometry_.block_size;
  const auto& columns = head(step.row(r).seq, layer, kv_head).columns;
  const uint32_t wanted = step.raw().moment < KVASIR_D1 ? n_prefill_ : n_decode_;
  const size_t n =
      o_.columns == ColumnScore::kUnion ? columns.size() : std::min<size_t>(wanted, columns.size());
  std::vector<float> partial(group * n), dots(uint64_t{group} * block_size), scratch;
  project(skew(layer, kv_head), {columns.data(), n},
          q + (uint64_t{r} * geometry_.n_q_heads + uint64_t{kv_head} * group) * geometry_.head_dim,
          group, partial.data(), scratch);
  const sdk::Candidates from = step.candidates(r, kv_head);
  const uint64_t end = std::min<uint64_t>(begin + kChunk, from.size());
  for (uint64_t i = begin, run; i < end; i += run) {  // runs of neighbours inside a block
    const uint32_t token = from[i];
    run = 1;
    while (i + run < end && from[i + run] == token + run && (token + run) % block_size != 0) ++run;
    float* out = scores_.data() + offsets_[list] + i;
    const std::byte* record = step.record(r, kv_head, token / block_size);
    if (!record) {
      std::fill_n(out, run, -std::numeric_limits<float>::infinity());
      continue;
    }
    score_rows(rows_, partial.data(), group, n, record + token % block_size * rows_.row_bytes(),
               run, dots.data(), block_size, scratch);
    for (uint64_t t = 0; t < run; ++t) {
      float score = dots[t];
      for (uint32_t g = 1; g < group; ++g) {
        const float other = dots[uint64_t{g} * block_size + t];
        score = o_.reduce == GroupReduce::kMax ? std::max(score, other) : score + other;
      }
      if (o_.reduce == GroupReduce::kMean) score /= static_cast<float>(group);
      out[t] = score * geometry_.softmax_scale;
    }
  }
}

// n' of one sequence: how many tokens a head has on average within alpha of its best.
uint32_t InfiniGen::common_count(const sdk::Step& step, uint32_t r) const {
  uint64_t total = 0;
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    const uint32_t list = r * geometry_.n_kv_heads + kv_head;
    const float* begin = scores_.data() + offsets_[list];
    const float* end = scores_.data() + offsets_[list + 1];
    float best = -std::numeric_limits<float>::infinity();
    for (const float* s = begin; s != end; ++s) best = *s > best ? *s : best;
    const float threshold = best - o_.alpha;
    total +=
        static_cast<uint64_t>(std::count_if(begin, end, [&](float s) { return s > threshold; }));
  }
  const uint64_t cap =
      o_.budget > 0 ? static_cast<uint64_t>(o_.budget * step.row(r).kv_len) : o_.budget_tokens;
  const uint64_t n = std::min<uint64_t>(total / geometry_.n_kv_heads, cap);
  return static_cast<uint32_t>(std::max<uint64_t>(n, 1));
}

void InfiniGen::count_recent(const sdk::Step& step, uint32_t layer, const float* q) {
  const uint64_t width = uint64_t{geometry_.n_q_heads} * geometry_.head_dim;
  each_head(step, [&](uint32_t r, uint32_t kv_head) {
    const kvasir_step_row& row = step.row(r);
    if (state_of(row.seq).layers[layer].counted >= row.kv_len) return;
    add_queries(layer, kv_head, 1, head(row.seq, layer, kv_head).recent, [&](uint32_t) {
      return q + r * width + uint64_t{kv_head} * group_size() * geometry_.head_dim;
    });
  });
  for (uint32_t r = 0; r < step.n_rows(); ++r) {
    state_of(step.row(r).seq).layers[layer].counted = step.row(r).kv_len;
  }
}

void InfiniGen::take_best(const float* scores, const sdk::Candidates& from,
                          std::span<uint32_t> row) const {
  std::vector<uint64_t> scratch(kernels::top_k_scratch_bytes(from.size()) / 8 + 1);
  kernels::top_k(scores, from.size(), row.size(), row.data(), scratch.data());
  for (uint32_t& index : row) index = from[index];
}

void InfiniGen::hit(std::vector<uint32_t>& used, uint32_t token, uint32_t kv_len) const {
  if (o_.policy == EvictionPolicy::kFifo) return;
  if (o_.policy == EvictionPolicy::kLru) {
    used[token] = kv_len;
  } else if (++used[token] >= kSaturated) {
    for (uint32_t& hits : used) hits /= 2;
  }
}

void InfiniGen::save(uint64_t seq, sdk::StateWriter& out) {
  out.put(kStateFormat);
  out.put(geometry_.n_layers);
  out.put(geometry_.n_kv_heads);
  out.put(geometry_.head_dim);
  out.put(rows_.n_columns);
  const State& state = state_of(seq);
  for (const Layer& layer : (state.layers.empty() ? fresh_ : state).layers) {
    out.put(layer.counted);
    for (const Head& of : layer.heads) {
      out.put_list(of.q_sum);
      out.put_list(of.k_sum);
      out.put_list(of.recent);
      out.put_list(of.columns);
      out.put_list(of.used);
    }
  }
}

void InfiniGen::load(uint64_t seq, sdk::StateReader& in) {
  in.expect(kStateFormat, "the format");
  in.expect(geometry_.n_layers, "n_layers");
  in.expect(geometry_.n_kv_heads, "n_kv_heads");
  in.expect(geometry_.head_dim, "head_dim");
  in.expect(rows_.n_columns, "the number of columns");
  State state = fresh_;
  const auto sums = [&](std::vector<double>& into, const char* what) {
    const auto read = in.take_list<double>(into.size(), what);
    const auto good = [](double s) { return s >= 0.0 && std::isfinite(s); };
    if (read.size() != into.size() || !std::all_of(read.begin(), read.end(), good)) {
      in.damaged(std::string(what) + " are no sums of absolute values");
    }
    into = read;
  };
  for (Layer& layer : state.layers) {
    layer.counted = in.take<uint32_t>();
    for (Head& of : layer.heads) {
      sums(of.q_sum, "query sums");
      sums(of.k_sum, "key sums");
      sums(of.recent, "recent sums");
      of.columns = in.take_list<uint16_t>(rows_.n_columns, "the column list");
      std::vector<bool> taken(geometry_.head_dim);
      for (const uint16_t c : of.columns) {
        if (c >= geometry_.head_dim || taken[c]) in.damaged("a column is out of range or double");
        taken[c] = true;
      }
      of.used = in.take_list<uint32_t>(geometry_.max_context, "the pool's counters");
    }
  }
  state_of(seq) = std::move(state);
}

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "kvasir.infinigen\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<InfiniGen>(host, request, err);
}
