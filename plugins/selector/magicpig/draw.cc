// Drawing: which tokens agree with a query in two tables, and what they weigh.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "kernels/collision.h"
#include "kernels/representative.h"
#include "plugins/selector/magicpig/magicpig.h"

namespace kvasir::magicpig {
namespace {

constexpr double kFloor = 1e-4;  // -ln(u + 1e-4), as published
constexpr size_t kBatch = 64;    // keys weighed at once

}  // namespace

void MagicPig::select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
  const uint32_t n_lists = step.n_seqs() * geometry_.n_q_heads;
  if (o_.n_bits == 0) {
    return sdk::flag_lists(out, KVASIR_SCOPE_Q_HEAD, n_lists, KVASIR_LIST_ALL);
  }
  const sdk::Queries queries(in.q, geometry_.n_q_heads, geometry_.head_dim);
  const uint64_t wanted = fingerprint(step, queries);
  if (drawn_for_ != wanted) {
    drawn_.resize(n_lists);
    for (std::vector<Drawn>& drawn : drawn_) drawn.clear();  // their memory stays
    read_.assign(uint64_t{step.n_seqs()} * geometry_.n_kv_heads, 0);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) layer_of(step.seq(s).id, step.layer());
    host_.for_each(uint64_t{step.n_seqs()} * geometry_.n_kv_heads,
                   [&](uint32_t i) { draw(step, in, queries, i); });
  }
  drawn_for_ = wanted;  // when the buffer is too small, the next call finds the same draw
  sdk::lay_out_lists(out, KVASIR_SCOPE_Q_HEAD, n_lists,
                     [&](uint32_t i) { return drawn_[i].size(); });
  drawn_for_ = 0;
  sdk::say_read(out, std::accumulate(read_.begin(), read_.end(), uint64_t{0}));
  out.weight_width = 1;
  for (uint32_t i = 0; i < n_lists; ++i) {
    uint64_t at = out.list_offsets[i];
    for (const Drawn& d : drawn_[i]) {
      out.index[at] = d.token;
      out.log_weight[at++] = d.log_weight;
    }
  }
}

uint64_t MagicPig::fingerprint(const sdk::Step& step, const sdk::Queries& queries) const {
  uint64_t sum = mix(step.layer() + 1);
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const kvasir_step_seq& seq = step.seq(s);
    const uint64_t numbers[] = {seq.id, seq.kv_len, seq.unit_begin, seq.unit_end};
    sum = XXH3_64bits_withSeed(numbers, sizeof numbers, sum);
    sum = XXH3_64bits_withSeed(queries.head(seq.q_begin, 0),
                               uint64_t{geometry_.n_q_heads} * geometry_.head_dim * sizeof(float),
                               sum);
  }
  return sum | 1;  // never 0
}

// The lists of one sequence and kv head: what each query head draws, then, in every list, what is
// attended for certain.
void MagicPig::draw(const sdk::Step& step, const kvasir_sel_in& in, const sdk::Queries& queries,
                    uint32_t list) {
  const uint32_t s = list / geometry_.n_kv_heads, kv_head = list % geometry_.n_kv_heads;
  const uint32_t group = group_size();
  const kvasir_step_seq& seq = step.seq(s);
  const Layer& layer = state_of(seq.id).layers[step.layer()];
  const Head& head = layer.heads[kv_head];
  const sdk::Candidates from = step.candidates(s, kv_head);
  const uint32_t end = layer.drawn_end(seq.unit_end, geometry_.block_size);
  std::vector<Drawn> certain;  // static, or not to be drawn yet
  std::vector<uint32_t> exact;
  std::set_union(head.fixed.begin(), head.fixed.end(), layer.skipped.begin(), layer.skipped.end(),
                 std::back_inserter(exact));
  for (const uint32_t token : exact) {
    if (token < end && from.contains(token)) certain.push_back({token, 0.0f});
  }
  for (uint64_t i = from.place_of(end); i < from.size(); ++i) {
    certain.push_back({from[i], 0.0f});
  }
  const std::span lists(drawn_.data() + uint64_t{s} * geometry_.n_q_heads + size_t{kv_head} * group,
                        group);
  const float* q = queries.head(seq.q_begin, kv_head * group);
  if (head.mean) {
    std::vector<uint16_t> code(uint64_t{group} * o_.n_tables);
    std::vector<float> work;
    const sdk::Scratch<float> rows(sdk::Host(nullptr, kDesc.id), 0, weigh_floats());
    planes_of(step.layer(), kv_head).codes(q, geometry_.head_dim, group, code.data(), work);
    for (uint32_t g = 0; g < group; ++g) {
      read_[list] += draw_head(head, from, end, code.data() + uint64_t{g} * o_.n_tables, lists[g]);
      read_[list] += weigh(head, in.leases + in.lease_offsets[s], kv_head,
                           q + uint64_t{g} * geometry_.head_dim, lists[g], rows);
    }
    if (o_.budget > certain.size()) {
      thin(step.layer(), kv_head, seq.kv_len, o_.budget - certain.size(), lists);
    }
  }
  for (std::vector<Drawn>& drawn : lists) {
    const auto middle = static_cast<ptrdiff_t>(drawn.size());
    drawn.insert(drawn.end(), certain.begin(), certain.end());
    std::inplace_merge(drawn.begin(), drawn.begin() + middle, drawn.end(),
                       [](const Drawn& a, const Drawn& b) { return a.token < b.token; });
  }
  // A window that hands over many tokens at once: they are more than the budget for one step.
  if (o_.budget != 0 && o_.budget <= certain.size()) {
    thin(step.layer(), kv_head, seq.kv_len, o_.budget, lists);
  }
}

// Candidates that agree with the query in two tables at least, static ones left out.
uint64_t MagicPig::draw_head(const Head& head, const sdk::Candidates& from, uint32_t end,
                             const uint16_t* code, std::vector<Drawn>& out) const {
  uint64_t read = 0;
  constexpr uint64_t kTwo = 0x0202020202020202;  // a byte that reached 2, of 8 at once
  std::vector<uint8_t> hits;
  for (const auto& segment : head.segments) {
    const uint32_t n = segment->end() - segment->begin();
    hits.assign(size_t{(n + 7) / 8} * 8, 0);
    read += segment->count(code, hits.data());
    const auto fixed = std::lower_bound(head.fixed.begin(), head.fixed.end(), segment->begin());
    for (auto at = fixed; at != head.fixed.end() && *at < segment->end(); ++at) {
      hits[*at - segment->begin()] = 0;
    }
    for (uint32_t at = 0; at < n; at += 8) {
      uint64_t eight;
      std::memcpy(&eight, hits.data() + at, sizeof eight);
      if (!(eight & kTwo)) continue;
      for (uint32_t id = at; id < at + 8; ++id) {
        const uint32_t token = segment->begin() + id;
        if (hits[id] < 2 || token >= end || !from.contains(token)) continue;
        out.push_back({token, 0.0f});
      }
    }
  }
  return read;
}

size_t MagicPig::weigh_floats() const {
  return kBatch * geometry_.head_dim +
         kernels::score_scratch_bytes(1, geometry_.head_dim) / sizeof(float);
}

// log_weight = -ln(u + 1e-4), u from the exact cosine of query and centred key. Keys are gathered a
// batch at a time, so that one kernel call takes all of one type.
uint64_t MagicPig::weigh(const Head& head, const kvasir_lease* leases, uint32_t kv_head,
                         const float* q, std::vector<Drawn>& drawn,
                         const sdk::Scratch<float>& work) const {
  const uint32_t dim = geometry_.head_dim;
  double square = 0.0, q_mean = 0.0;
  for (uint32_t d = 0; d < dim; ++d) {
    square += double{q[d]} * q[d];
    q_mean += double{q[d]} * (*head.mean)[d];
  }
  auto* rows = reinterpret_cast<std::byte*>(work.data());
  float* scratch = work.data() + kBatch * dim;
  float norm[kBatch], weight[kBatch];
  uint64_t n_read = 0;
  auto segment = head.segments.begin();
  for (size_t begin = 0, n = 0; begin < drawn.size(); begin += n) {
    kernels::ElementType type{};
    uint64_t key_bytes = 0;
    const size_t end = std::min(begin + kBatch, drawn.size());
    for (n = 0; begin + n < end; ++n) {
      const uint32_t token = drawn[begin + n].token;
      const sdk::HeadKeys keys = keys_to(leases[token / geometry_.block_size], kv_head, token);
      const kernels::ElementType of = sdk::element_type(keys.dtype);
      if (n == 0) {
        type = of;
        key_bytes = kernels::row_bytes(type, dim);
      }
      if (of != type) break;  // two storages may hold unlike types
      std::memcpy(rows + n * key_bytes, keys.k + (keys.n_tokens - 1) * keys.token_stride,
                  key_bytes);
      while (token >= (*segment)->end()) ++segment;
      norm[n] = (*segment)->norm(token);
    }
    n_read += n * (key_bytes + sizeof(float));
    kernels::score_dot({q, 1}, {rows, key_bytes, n, dim, type}, weight, n, scratch);
    kernels::collision_log_weights({o_.n_bits, o_.n_tables, kFloor}, q_mean, std::sqrt(square),
                                   norm, n, weight);
    for (size_t i = 0; i < n; ++i) drawn[begin + i].log_weight = weight[i];
  }
  return n_read;
}

// More were drawn for the group than the budget takes: of the M tokens the `n_kept` with the
// smallest random number stay, each with probability n_kept / M, and weigh M / n_kept times as
// much.
void MagicPig::thin(uint32_t layer, uint32_t kv_head, uint32_t kv_len, size_t n_kept,
                    std::span<std::vector<Drawn>> lists) const {
  std::vector<uint32_t> tokens;
  for (const auto& list : lists) {
    for (const Drawn& d : list) tokens.push_back(d.token);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  if (tokens.size() <= n_kept) return;
  const uint64_t salt =
      mix(mix(seed_ ^ (uint64_t{layer} << 40 | uint64_t{kv_head} << 32 | kv_len)));
  const auto lot = [&](uint32_t token) { return mix(salt + token * uint64_t{0x9e3779b97f4a7c15}); };
  auto kept = tokens;
  std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(n_kept), kept.end(),
                   [&](uint32_t a, uint32_t b) { return lot(a) < lot(b); });
  kept.resize(n_kept);
  std::sort(kept.begin(), kept.end());
  const auto more = static_cast<float>(
      std::log(static_cast<double>(tokens.size()) / static_cast<double>(n_kept)));
  for (auto& list : lists) {
    std::erase_if(list, [&](const Drawn& d) {
      return !std::binary_search(kept.begin(), kept.end(), d.token);
    });
    for (Drawn& d : list) d.log_weight += more;
  }
}

}  // namespace kvasir::magicpig
