// Cuts what another selector chose down to the tokens that carry a share p of its attention, by
// keys of four bits. Lin et al. 2025, "Twilight", arXiv:2502.02770.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/queries.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "plugins/shared/best_first.h"
#include "plugins/shared/key_values.h"
#include "plugins/shared/softcap.h"

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

// One key: value = low + step * nibble.
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
    out.flags = KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_PER_TOKEN;
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
    host_.for_each(n_lists, [&](uint32_t i) {
      kept[i] = keep(step, i / g_.n_kv_heads, i % g_.n_kv_heads, q.data());
    });
    sdk::write_lists(out, KVASIR_SCOPE_KV_HEAD, kept);
    uint64_t n_keys = 0;
    for (uint32_t i = 0; i < n_lists; ++i)
      n_keys += step.candidates(i / g_.n_kv_heads, i % g_.n_kv_heads).size();
    sdk::say_read(out, n_keys * token_bytes());
  }

 private:
  uint64_t token_bytes() const { return sizeof(Scale) + uint64_t{(g_.head_dim + 7) / 8} * 4; }

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

  // q . key = low * sum(q) + step * sum(q * nibble)
  float logit(const std::byte* record, const float* q, float q_sum) const {
    Scale scale;
    std::memcpy(&scale, record, sizeof scale);
    const auto* nibbles = reinterpret_cast<const uint8_t*>(record + sizeof scale);
    float dot = 0.0f;
    for (uint32_t d = 0; d < g_.head_dim; ++d)
      dot += q[d] * static_cast<float>(static_cast<unsigned>(nibbles[d / 2]) >> d % 2 * 4 & 15u);
    const float scaled = g_.softmax_scale * (scale.low * q_sum + scale.step * dot);
    return static_cast<float>(sdk::softcapped(g_, double{scaled}));
  }

  // The union over the group of, per query head, the fewest candidates whose softmax among the
  // candidates reaches p; under a budget, those of the largest sums.
  std::vector<uint32_t> keep(const sdk::Step& step, uint32_t seq, uint32_t head,
                             const float* q) const {
    const sdk::Candidates from = step.candidates(seq, head);
    const auto n = static_cast<uint32_t>(from.size());
    std::vector<float> mass(n), sum(n);
    std::vector<bool> is_kept(n);
    for (uint32_t g = 0; g < group_ && n > 0; ++g) {
      const float* query =
          q + (uint64_t{seq} * g_.n_q_heads + uint64_t{head} * group_ + g) * g_.head_dim;
      const float q_sum = std::accumulate(query, query + g_.head_dim, 0.0f);
      for (uint32_t c = 0; c < n; ++c) {
        const std::byte* record = step.record(seq, head, from[c] / g_.block_size);
        if (!record) sdk::fail_invalid("select: token " + std::to_string(from[c]) + " is unknown");
        mass[c] = logit(record + from[c] % g_.block_size * token_bytes(), query, q_sum);
      }
      const float high = *std::max_element(mass.begin(), mass.end());
      for (float& x : mass) x = std::exp(x - high);
      const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
      if (!std::isfinite(total)) sdk::fail_invalid("select: a logit is not finite");
      const std::vector<uint32_t> order = sdk::best_first(mass);
      double reached = 0.0;
      for (uint32_t i = 0; i < n && reached < p_ * total; ++i) {
        reached += double{mass[order[i]]};
        is_kept[order[i]] = true;
      }
      for (uint32_t c = 0; c < n; ++c) sum[c] += static_cast<float>(double{mass[c]} / total);
    }
    std::vector<uint32_t> out;
    for (uint32_t c = 0; c < n; ++c)
      if (is_kept[c]) out.push_back(c);
    if (budget_ != 0 && out.size() > budget_) {
      std::stable_sort(out.begin(), out.end(),
                       [&](uint32_t a, uint32_t b) { return sum[a] > sum[b]; });
      out.resize(budget_);
      std::sort(out.begin(), out.end());
    }
    for (uint32_t& index : out) index = from[index];
    return out;
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
