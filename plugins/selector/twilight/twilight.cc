// Cuts what another selector chose down to the tokens that carry a share p of its attention, by
// keys of four bits. Lin et al. 2025, "Twilight", arXiv:2502.02770.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/queries.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/nibble_keys.h"
#include "kernels/top_mass.h"
#include "plugins/shared/key_values.h"

namespace {
using namespace kvasir;

constexpr const char* kPAliases[] = {"top_p", nullptr};
constexpr std::array kOptions = {
    sdk::float_option({.key = "p",
                       .help = "share of the attention within what came before to keep",
                       .aliases = kPAliases},
                      0.95, 0.0, 1.0),
    sdk::int_option({.key = "budget_tokens",
                     .help = "at most so many per layer, kv head and step, whatever p says",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 1, INT32_MAX)};

// Ahead of a key's nibbles: value = low + step * nibble, as kernels/nibble_keys.h reads it.
struct Scale {
  float low, step;
};

class Twilight {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.twilight",
                     .version = "0.1.0",
                     .name = "Twilight",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the tokens that carry a share p of the attention.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_TOKEN_ITEMS,
                     .dtypes = sdk::kElementTypes});

  Twilight(const sdk::Host& host, const sdk::Options& options)
      : host_(host), p_(options.f64("p")), budget_(options.u32_or("budget_tokens", 0)) {}

  void validate(const kvasir_geometry& geometry) const { sdk::require_rotated_keys(geometry); }

  void bind(const kvasir_geometry& geometry) {
    g_ = geometry;
    keys_ = sdk::LeasedKeys(geometry);
    group_ = geometry.n_q_heads / geometry.n_kv_heads;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    if (budget_ != 0) out.max_units = budget_;
  }

  // Candidates are full blocks but for the last tokens before the window, so every block is kept
  // as it grows.
  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_PER_TOKEN | KVASIR_LAYOUT_READS_NEW;
    out.record_bytes = uint64_t{g_.block_size} * token_bytes();
    out.format = 1;
  }

  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    host_.for_each(g_.n_kv_heads, [&](uint32_t head) {
      std::vector<float> key(g_.head_dim);
      for (const kvasir_update_item& item : items) {
        if (item.n_new == 0) continue;
        const uint32_t end = item.first_new + item.n_new;
        const sdk::HeadKeys keys = keys_.keys(item.lease, head, item.block, end);
        std::byte* record = step.record_to_write(item.seq, head, item.block);
        for (uint32_t t = item.first_new; t < end; ++t) {
          sdk::read_keys(keys, t, 1, g_.head_dim, key.data());
          write(key, record + uint64_t{t} * token_bytes());
        }
      }
    });
  }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    const uint32_t n_lists = step.n_seqs() * g_.n_kv_heads;
    const std::vector<float> q = sdk::Queries(in.q, g_.n_q_heads, g_.head_dim).pooled(step);
    std::vector<std::vector<uint32_t>> kept(n_lists);
    host_.parallel_for(n_lists, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
        const uint32_t seq = i / g_.n_kv_heads, head = i % g_.n_kv_heads;
        const uint64_t q_head = uint64_t{seq} * g_.n_q_heads + uint64_t{head} * group_;
        kept[i] = keep(step, seq, head, q.data() + q_head * g_.head_dim, worker);
      }
    });
    sdk::write_lists(out, KVASIR_SCOPE_KV_HEAD, kept);
    uint64_t n_keys = 0;
    for (uint32_t i = 0; i < n_lists; ++i)
      n_keys += step.candidates(i / g_.n_kv_heads, i % g_.n_kv_heads).size();
    sdk::say_read(out, n_keys * token_bytes());
  }

 private:
  uint64_t token_bytes() const { return kernels::nibble_key_bytes(g_.head_dim); }

  void write(const std::vector<float>& key, std::byte* to) const {
    const auto [low, high] = std::minmax_element(key.begin(), key.end());
    const Scale scale{*low, (*high - *low) / 15.0f};
    std::memcpy(to, &scale, sizeof scale);
    auto* nibbles = reinterpret_cast<uint8_t*>(to + sizeof scale);
    std::memset(nibbles, 0, token_bytes() - sizeof scale);
    for (uint32_t d = 0; d < g_.head_dim && scale.step > 0.0f; ++d) {
      const long level = std::lround((key[d] - scale.low) / scale.step);
      const auto nibble = static_cast<unsigned>(std::clamp(level, 0L, 15L));
      nibbles[d / 2] = static_cast<uint8_t>(nibbles[d / 2] | nibble << d % 2 * 4);
    }
  }

  // Scratch of one list of n candidates, which a group of query heads shares.
  struct Work {
    Work(const sdk::Host& host, uint32_t worker, uint32_t group, uint32_t head_dim, uint64_t n)
        : n_score(kernels::nibble_score_scratch_bytes(group, head_dim) / sizeof(float)),
          n_top((kernels::top_mass_scratch_bytes(n) + 7) / 8),
          memory(host, worker, (n_score + 1) / 2 + n_top + n + (group * n + 1) / 2 + (n + 7) / 8),
          score(reinterpret_cast<float*>(memory.data())),
          top(memory.data() + (n_score + 1) / 2),
          keys(reinterpret_cast<const void**>(top + n_top)),
          mass(reinterpret_cast<float*>(keys + n)),
          is_kept(reinterpret_cast<uint8_t*>(keys + n + (group * n + 1) / 2)) {}
    uint64_t n_score, n_top;
    sdk::Scratch<uint64_t> memory;
    float* score;  // of kernels
    uint64_t* top;
    const void** keys;  // [n]
    float* mass;        // [group][n], of a query head relative to its largest
    uint8_t* is_kept;   // [n]
  };

  void find_keys(const sdk::Step& step, uint32_t seq, uint32_t head, const sdk::Candidates& from,
                 const void** keys) const {
    const uint64_t bytes = token_bytes();
    uint32_t begin = 0, end = 0;  // of the block that `record` is of
    const std::byte* record = nullptr;
    for (uint64_t c = 0; c < from.size(); ++c) {
      const uint32_t token = from[c];
      if (token < begin || token >= end) {
        const uint32_t block = token / g_.block_size;
        record = step.record(seq, head, block);
        if (!record) sdk::fail_invalid("select: token " + std::to_string(token) + " is unknown");
        begin = block * g_.block_size;
        end = begin + g_.block_size;
      }
      keys[c] = record + (token - begin) * bytes;
    }
  }

  // The union over the group of, per query head, the fewest candidates whose softmax among the
  // candidates reaches p; under a budget, those of the largest sums.   q [group][head_dim]
  std::vector<uint32_t> keep(const sdk::Step& step, uint32_t seq, uint32_t head, const float* q,
                             uint32_t worker) const {
    const sdk::Candidates from = step.candidates(seq, head);
    const auto n = static_cast<uint32_t>(from.size());
    std::vector<uint32_t> out;
    if (n == 0) return out;
    const Work work(host_, worker, group_, g_.head_dim, n);
    find_keys(step, seq, head, from, work.keys);
    kernels::score_nibble_keys(q, group_, g_.head_dim, work.keys, n, work.mass, n, work.score);
    std::memset(work.is_kept, 0, n);
    std::vector<double> total(group_);
    for (uint32_t g = 0; g < group_; ++g) {
      float* const mass = work.mass + uint64_t{g} * n;
      total[g] = kernels::softmax_weights(g_.softmax_scale, g_.softcap, mass, n);
      if (!std::isfinite(total[g])) sdk::fail_invalid("select: a logit is not finite");
      kernels::mark_top_mass(mass, n, total[g], p_, work.is_kept, work.top);
    }
    out.reserve(n);
    for (uint32_t c = 0; c < n; ++c)
      if (work.is_kept[c]) out.push_back(c);
    if (budget_ != 0 && out.size() > budget_) cut(work, n, total, out);
    for (uint32_t& index : out) index = from[index];
    return out;
  }

  // To the budget_ candidates of the largest sums, of equal ones the first.
  void cut(const Work& work, uint32_t n, const std::vector<double>& total,
           std::vector<uint32_t>& kept) const {
    std::vector<float> sum(n);
    for (uint32_t g = 0; g < group_; ++g)
      for (const uint32_t c : kept)
        sum[c] += static_cast<float>(double{work.mass[uint64_t{g} * n + c]} / total[g]);
    std::stable_sort(kept.begin(), kept.end(),
                     [&](uint32_t a, uint32_t b) { return sum[a] > sum[b]; });
    kept.resize(budget_);
    std::sort(kept.begin(), kept.end());
  }

  sdk::Host host_;
  double p_;
  uint32_t budget_;  // 0: none
  kvasir_geometry g_{};
  sdk::LeasedKeys keys_;
  uint32_t group_ = 1;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.twilight", "0.1.0", Twilight)
