// A selector for proofs about retrieval: all tokens, all but some, or exactly the best ones; and
// the attention mass on a range of tokens. See needle_probe.h. K must be f32.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/task/plugins/needle_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "plugins/sdk/plugin.h"

namespace {
using namespace kvasir;

class Probe {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "org.test.needle_probe",
       .version = "1.0.0",
       .name = "Needle probe",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Masks tokens, or attends to the exact best; reports mass on a range.",
       .needs = KVASIR_NEED_KEYS | KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ROWS});

  Probe(const sdk::Host& host, const sdk::Options&) : host_(host) {}

  const void* get_extension(const char* id) {
    return std::strcmp(id, test::kNeedleProbe) == 0 ? &state_ : nullptr;
  }

  void bind(const kvasir_geometry& geometry) {
    geometry_ = geometry;
    state_.mass.assign(geometry.n_layers, std::vector<double>(geometry.n_q_heads, 0.0));
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    out.mass_at = KVASIR_MASS_AT_DECODE;
    out.mass_level = KVASIR_MASS_TOKEN;
    out.mass_reduce = KVASIR_MASS_PER_Q_HEAD;
    out.mass_part = KVASIR_PART_ALL;
  }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    const uint32_t n_heads = geometry_.n_kv_heads;
    if (step.n_rows() != 1) sdk::fail_invalid("the probe serves one sequence at a time");
    std::vector<std::vector<uint32_t>> chosen(n_heads);
    host_.parallel_for(n_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (auto h = static_cast<uint32_t>(begin); h < end; ++h) chosen[h] = choose(step, in, h);
    });
    sdk::lay_out_rows(out, KVASIR_SCOPE_KV_HEAD, n_heads,
                      [&](uint32_t h) { return uint64_t{chosen[h].size()}; });
    for (uint32_t h = 0; h < n_heads; ++h)
      std::copy(chosen[h].begin(), chosen[h].end(), sdk::row_indices(out, h).begin());
  }

  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    for (uint32_t head = 0; head < geometry_.n_q_heads; ++head) {
      double sum = 0;
      for (uint64_t i = mass.row_offsets[head]; i < mass.row_offsets[head + 1]; ++i) {
        const uint64_t token = mass.index ? mass.index[i] : i - mass.row_offsets[head];
        if (token >= state_.watch_begin && token < state_.watch_end)
          sum += static_cast<double>(mass.value[i]);
      }
      state_.mass[step.layer()][head] = sum;
    }
    ++state_.observed;
  }

 private:
  bool masked(uint32_t token) const {
    return std::any_of(state_.masked.begin(), state_.masked.end(),
                       [&](const auto& m) { return token >= m.first && token < m.second; });
  }

  std::vector<uint32_t> choose(const sdk::Step& step, const kvasir_sel_in& in, uint32_t kv_head) {
    const sdk::Candidates from = step.candidates(0, kv_head);
    std::vector<uint32_t> tokens(from.size());
    for (uint64_t i = 0; i < from.size(); ++i) tokens[i] = from[i];
    if (state_.mode == test::NeedleProbe::Mode::kMask)
      std::erase_if(tokens, [&](uint32_t token) { return masked(token); });
    if (state_.mode != test::NeedleProbe::Mode::kTopK) return tokens;
    const uint32_t kv_len = step.row(0).kv_len;
    const auto forced = kv_len - static_cast<uint32_t>(tokens.size());
    const auto budget = static_cast<uint32_t>(state_.share * kv_len);
    const size_t keep = std::min<size_t>(budget > forced ? budget - forced : 0, tokens.size());
    const std::vector<double> p = probabilities(in, kv_head, kv_len);
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(keep), tokens.end(),
                     [&](uint32_t a, uint32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
    tokens.resize(keep);
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  }

  // Of every cached token, summed over the query heads of the group.
  std::vector<double> probabilities(const kvasir_sel_in& in, uint32_t kv_head,
                                    uint32_t kv_len) const {
    const uint32_t group = geometry_.n_q_heads / geometry_.n_kv_heads;
    std::vector<double> sum(kv_len, 0.0), logit(kv_len);
    for (uint32_t g = 0; g < group; ++g) {
      const auto* q = reinterpret_cast<const float*>(static_cast<const char*>(in.q.data) +
                                                     (kv_head * group + g) * in.q.stride[1]);
      for (uint32_t t = 0; t < kv_len; ++t) {
        const float* k = key(in, kv_head, t);
        logit[t] =
            double{geometry_.softmax_scale} * std::inner_product(q, q + geometry_.head_dim, k, 0.0);
      }
      const double high = *std::max_element(logit.begin(), logit.end());
      double total = 0;
      for (const double x : logit) total += std::exp(x - high);
      for (uint32_t t = 0; t < kv_len; ++t) sum[t] += std::exp(logit[t] - high) / total;
    }
    return sum;
  }

  const float* key(const kvasir_sel_in& in, uint32_t kv_head, uint32_t token) const {
    const kvasir_lease& lease = in.leases[token / geometry_.block_size];
    const kvasir_kv_format& format = geometry_.formats[lease.format];
    if (format.dtype_k != KVASIR_DTYPE_F32) sdk::fail_invalid("the probe reads K as f32");
    return reinterpret_cast<const float*>(sdk::head_keys(lease, format, kv_head) +
                                          token % geometry_.block_size * format.k_token_stride);
  }

  sdk::Host host_;
  kvasir_geometry geometry_{};
  test::NeedleProbe state_;
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "org.test.needle_probe\0", "1.0.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<Probe>(host, request, err);
}
