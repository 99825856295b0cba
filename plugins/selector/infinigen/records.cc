// What the prompt and later tokens leave behind: column sums, the columns, partial keys.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/queries.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/symmetric_eigen.h"
#include "plugins/selector/infinigen/infinigen.h"

namespace kvasir::infinigen {
namespace {

constexpr uint32_t kBatch = 16;  // keys skewed at a time

// The upper triangle of x x^T, row by row.
void add_square(const float* x, uint32_t dim, std::vector<double>& sum) {
  size_t at = 0;
  for (uint32_t i = 0; i < dim; ++i)
    for (uint32_t j = i; j < dim; ++j) sum[at++] += double{x[i]} * double{x[j]};
}

void add_absolute(const float* values, size_t n, size_t width, std::vector<double>& sum) {
  for (size_t i = 0; i < n * width; ++i) sum[i % width] += std::abs(values[i]);
}

// The columns with the largest sums, first; equal sums: the lower column.
std::vector<uint16_t> largest(const std::vector<double>& sums, uint32_t n) {
  std::vector<uint16_t> order(sums.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return sums[a] > sums[b]; });
  order.resize(std::min<size_t>(n, order.size()));
  return order;
}

}  // namespace

// Tokens in order, heads in order: the same sum however the prompt was cut.
template <class Query>
void InfiniGen::add_queries(uint32_t layer, uint32_t kv_head, uint32_t n, std::vector<double>& sum,
                            const Query& query) const {
  const uint32_t dim = geometry_.head_dim;
  std::vector<float> skewed(uint64_t{group_size()} * dim), scratch;
  for (uint32_t i = 0; i < n; ++i) {
    if (o_.skew_tokens != 0) {
      for (uint32_t g = 0; g < group_size(); ++g) add_square(query(i) + g * dim, dim, sum);
      continue;
    }
    project(skew(layer, kv_head), {}, query(i), group_size(), skewed.data(), scratch);
    add_absolute(skewed.data(), group_size(), dim, sum);
  }
}

template <class Fn>
void InfiniGen::each_batch(const kvasir_update_item& item, uint32_t kv_head, uint32_t begin,
                           uint32_t end, const Fn& fn) const {
  if (begin >= end) return;
  const sdk::HeadKeys leased = keys_.keys(item.lease, kv_head, item.block, end);
  std::vector<float> keys(uint64_t{kBatch} * geometry_.head_dim);
  for (uint32_t at = begin; at < end; at += kBatch) {
    const uint32_t n = std::min(kBatch, end - at);
    sdk::read_keys(leased, at, n, geometry_.head_dim, keys.data());
    fn(at, n, keys.data());
  }
}

void InfiniGen::prefill(const sdk::Step& step, const kvasir_sel_in& in) {
  begin(step);
  const sdk::Queries queries(in.q, geometry_.n_q_heads, geometry_.head_dim);
  each_head(step, [&](uint32_t s, uint32_t kv_head) {
    const kvasir_step_seq& seq = step.seq(s);
    add_queries(step.layer(), kv_head, seq.n_q, head(seq.id, step.layer(), kv_head).q_sum,
                [&](uint32_t i) { return queries.head(seq.q_begin + i, kv_head * group_size()); });
  });
}

void InfiniGen::update(const sdk::Step& step, const sdk::UpdateItems& items) {
  begin(step);
  if (sums_keys() && step.moment() != KVASIR_MOMENT_BETWEEN_STEPS) sum_keys(step, items);
  std::vector<bool> choose(step.n_seqs());
  for (const kvasir_update_item& item : items) {
    if (item.flags & KVASIR_ITEM_PROMPT_END) choose[item.seq] = true;
  }
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    if (choose[s]) choose_columns(step, s);
  }
  for (const kvasir_update_item& item : items) {
    const bool in_prompt = step.seq(item.seq).phase == KVASIR_PHASE_PREFILL;
    if (!in_prompt && item.block == 0 && item.first_new == 0) begin_without_prompt(step, item.seq);
  }
  host_.for_each(items.size() * geometry_.n_kv_heads, [&](uint32_t i) {
    write(step, items[i / geometry_.n_kv_heads], i % geometry_.n_kv_heads);
  });
}

// No query has said yet which columns matter: the first ones, which a skew file puts in order.
void InfiniGen::begin_without_prompt(const sdk::Step& step, uint32_t s) {
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    auto& columns = head(step.seq(s).id, step.layer(), kv_head).columns;
    if (!columns.empty()) continue;
    columns.resize(format_.n_columns);
    std::iota(columns.begin(), columns.end(), uint16_t{0});
  }
}

void InfiniGen::sum_keys(const sdk::Step& step, const sdk::UpdateItems& items) {
  each_head(step, [&](uint32_t s, uint32_t kv_head) {
    auto& sum = head(step.seq(s).id, step.layer(), kv_head).k_sum;
    std::vector<float> skewed(uint64_t{kBatch} * geometry_.head_dim), scratch;
    for (const kvasir_update_item& item : items) {
      if (item.seq != s || !(item.flags & KVASIR_ITEM_NEW)) continue;
      each_batch(item, kv_head, item.first_new, item.first_new + item.n_new,
                 [&](uint32_t, uint32_t n, const float* keys) {
                   project(skew(step.layer(), kv_head), {}, keys, n, skewed.data(), scratch);
                   add_absolute(skewed.data(), n, geometry_.head_dim, sum);
                 });
    }
  });
}

void InfiniGen::choose_columns(const sdk::Step& step, uint32_t s) {
  const bool refresh = step.moment() == KVASIR_MOMENT_ATTENDED;
  host_.for_each(geometry_.n_kv_heads, [&](uint32_t kv_head) {
    Head& of = head(step.seq(s).id, step.layer(), kv_head);
    std::vector<double> sums = refresh ? of.recent : of.q_sum;
    std::fill(of.recent.begin(), of.recent.end(), 0.0);
    if (o_.skew_tokens != 0) return skew_by(sums, of);
    const bool seen = std::any_of(sums.begin(), sums.end(), [](double sum) { return sum > 0.0; });
    if (!seen && !of.columns.empty()) return;
    of.columns = best_columns(std::move(sums), of.k_sum);
  });
}

// A = V of Q = U S V^T, as in a skew file, but of the queries whose squares are summed: where keys
// are rotated, queries far from the place of those that A was made of look elsewhere. Its first
// columns are the ones used. Queries that span fewer dimensions leave the others open: what is
// there stays, or else columns are those of the queries themselves with the largest sums of
// squares.
void InfiniGen::skew_by(const std::vector<double>& sums, Head& of) const {
  constexpr double kNothing = 1e-12;  // of the largest: what rounding leaves of a zero
  const uint32_t dim = geometry_.head_dim, n = format_.n_columns;
  std::vector<double> square(uint64_t{dim} * dim), value(dim), vector(square.size()), diagonal;
  auto sum = sums.begin();
  for (uint32_t i = 0; i < dim; ++i) {
    diagonal.push_back(*sum);
    for (uint32_t j = i; j < dim; ++j) square[i * dim + j] = square[j * dim + i] = *sum++;
  }
  kernels::symmetric_eigen(square.data(), dim, value.data(), vector.data());
  const bool is_open = !(value[n - 1] > kNothing * value[0]);
  if (is_open && !of.columns.empty()) return;
  of.columns = largest(diagonal, n);
  if (is_open) return;
  std::iota(of.columns.begin(), of.columns.end(), uint16_t{0});
  of.own_skew.assign(vector.begin(), vector.begin() + static_cast<ptrdiff_t>(uint64_t{n} * dim));
}

// Most important first, by column_score.   q_sum, k_sum [head_dim]
std::vector<uint16_t> InfiniGen::best_columns(std::vector<double> q_sum,
                                              const std::vector<double>& k_sum) const {
  if (o_.columns == ColumnScore::kQueryAndKey) {
    for (size_t c = 0; c < q_sum.size(); ++c) q_sum[c] += k_sum[c];
  }
  if (o_.columns != ColumnScore::kUnion) return largest(q_sum, format_.n_columns);
  const uint32_t n = std::max(n_decode_, n_prefill_);
  std::vector<uint16_t> out = largest(q_sum, n);
  for (const uint16_t c : largest(k_sum, n)) {
    if (out.size() < format_.n_columns && std::find(out.begin(), out.end(), c) == out.end()) {
      out.push_back(c);
    }
  }
  return out;
}

void InfiniGen::write(const sdk::Step& step, const kvasir_update_item& item, uint32_t kv_head) {
  const bool all = item.flags & KVASIR_ITEM_PROMPT_END;
  const uint32_t begin = all ? 0 : item.first_new;
  const uint32_t end = all ? item.n_tokens : item.first_new + item.n_new;
  const Head& of = head(step.seq(item.seq).id, step.layer(), kv_head);
  const auto& columns = of.columns;
  if (columns.empty() || begin >= end) return;
  std::byte* record = step.record_to_write(item.seq, kv_head, item.block);
  std::vector<float> values(uint64_t{kBatch} * columns.size()), scratch;
  each_batch(item, kv_head, begin, end, [&](uint32_t at, uint32_t n, const float* keys) {
    project(skew(of, step.layer(), kv_head), columns, keys, n, values.data(), scratch);
    for (uint32_t i = 0; i < n; ++i) {
      store_key(format_, values.data() + i * columns.size(), columns.size(),
                record + (at + i) * format_.key_bytes());
    }
  });
}

void InfiniGen::count_recent(const sdk::Step& step, uint32_t layer, const float* q) {
  const uint64_t width = uint64_t{geometry_.n_q_heads} * geometry_.head_dim;
  each_head(step, [&](uint32_t s, uint32_t kv_head) {
    const kvasir_step_seq& seq = step.seq(s);
    if (seq.phase != KVASIR_PHASE_DECODE || state_of(seq.id).layers[layer].counted >= seq.kv_len)
      return;
    add_queries(layer, kv_head, 1, head(seq.id, layer, kv_head).recent, [&](uint32_t) {
      return q + s * width + uint64_t{kv_head} * group_size() * geometry_.head_dim;
    });
  });
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const kvasir_step_seq& seq = step.seq(s);
    if (seq.phase == KVASIR_PHASE_DECODE) state_of(seq.id).layers[layer].counted = seq.kv_len;
  }
}

}  // namespace kvasir::infinigen
