// Rotary position embedding and its scalings for contexts beyond the trained one.
// RoFormer arXiv:2104.09864; linear interpolation arXiv:2306.15595; YaRN and dynamic NTK
// arXiv:2309.00071; the Llama 3 rule as in the frequencies published with Llama 3.1.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr uint32_t kSplit = 2048;              // positions per coarse step of the table
constexpr uint32_t kMaxPairs = 512;            // head_dim <= 1024
constexpr uint32_t kTablePositions = 1 << 22;  // beyond, cosines are computed on the spot
constexpr size_t kWorthSharing = 65536;  // elements of a call: below, waking the pool costs more

// The pair that turns `turns` times over the original context: YaRN's bounds of what is
// interpolated.
double yarn_pair(const RopeConfig& c, double turns) {
  const double wave = c.original_context / (turns * 2.0 * std::numbers::pi);
  return c.n_dims * std::log(wave) / (2.0 * std::log(static_cast<double>(c.base)));
}

void scale_yarn(const RopeConfig& c, std::vector<double>& frequencies) {
  const double low = std::max(0.0, std::floor(yarn_pair(c, c.beta_fast)));
  double high = std::min(c.n_dims - 1.0, std::ceil(yarn_pair(c, c.beta_slow)));
  if (high == low) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1.0 - ramp) + ramp / c.factor;
  }
}

// Waves shorter than original / high stay, longer than original / low are slowed by the factor,
// between them the frequency is interpolated.
void scale_llama3(const RopeConfig& c, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double wave = 2.0 * std::numbers::pi / frequency;
    const double low = c.low_freq_factor;
    const double smooth = (c.original_context / wave - low) / (c.high_freq_factor - low);
    const double keep = std::clamp(smooth, 0.0, 1.0);
    frequency *= keep + (1.0 - keep) / c.factor;
  }
}

// Radians per position, one per pair, for a sequence of kv_len tokens.
std::vector<double> rope_frequencies(const RopeConfig& c, uint64_t kv_len) {
  double base = c.base;
  if (c.scaling == RopeScaling::kDynamicNtk && kv_len > c.original_context && c.n_dims > 2) {
    const double stretch = static_cast<double>(kv_len) / c.original_context;
    const double dims = c.n_dims;
    base *= std::pow(c.factor * stretch - (c.factor - 1.0), dims / (dims - 2.0));
  }
  std::vector<double> frequencies(c.n_dims / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / c.n_dims);
  }
  if (c.scaling == RopeScaling::kYarn) scale_yarn(c, frequencies);
  if (c.scaling == RopeScaling::kLlama3) scale_llama3(c, frequencies);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    if (c.scaling == RopeScaling::kLinear) frequencies[i] /= c.factor;
    if (!c.freq_factors.empty()) frequencies[i] /= static_cast<double>(c.freq_factors[i]);
  }
  return frequencies;
}

double rope_magnitude(const RopeConfig& c) {
  if (c.scaling != RopeScaling::kYarn) return 1.0;
  const double given = c.attn_factor == 0.0f ? 1.0 : static_cast<double>(c.attn_factor);
  return c.factor <= 1.0f ? given : given * (0.1 * std::log(static_cast<double>(c.factor)) + 1.0);
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, uint32_t max_context, ThreadPool* pool)
    : config_(config), pool_(pool), magnitude_(rope_magnitude(config)) {
  if (config.n_dims % 2 != 0 || config.n_dims / 2 > kMaxPairs) {
    throw input_error("RoPE over " + std::to_string(config.n_dims) +
                      " dimensions is not supported; expected an even number up to " +
                      std::to_string(2 * kMaxPairs));
  }
  frequencies_ = rope_frequencies(config, 0);
  const uint32_t positions = std::min(max_context, kTablePositions);
  const auto fill = [&](std::vector<Turn>& turns, uint32_t n, double step) {
    turns.resize(size_t{n} * frequencies_.size());
    for (uint32_t p = 0; p < n; ++p) {
      for (size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = step * p * frequencies_[i];
        turns[p * frequencies_.size() + i] = {std::cos(angle), std::sin(angle)};
      }
    }
  };
  fill(fine_, std::min(positions + 1, kSplit), 1.0);
  fill(coarse_, positions / kSplit + 1, kSplit);
}

// cos(a + b) from the two tables in double: exact to 1e-15 at any position, with tables that stay
// small where cosines per position would take half a gigabyte at a million tokens.
void RopeTable::turn(const std::vector<double>& frequencies, int64_t pos, double magnitude,
                     float* cos, float* sin) const {
  const size_t n = frequencies.size();
  const auto at = static_cast<uint64_t>(pos < 0 ? -pos : pos);
  const uint64_t coarse = at / kSplit;
  const uint64_t fine = at % kSplit;
  const bool tabled = &frequencies == &frequencies_ && (coarse + 1) * n <= coarse_.size() &&
                      (fine + 1) * n <= fine_.size();
  const double sign = pos < 0 ? -magnitude : magnitude;
  for (size_t i = 0; i < n; ++i) {
    double c, s;
    if (tabled) {
      const Turn a = coarse_[coarse * n + i];
      const Turn b = fine_[fine * n + i];
      c = a.cos * b.cos - a.sin * b.sin;
      s = a.sin * b.cos + a.cos * b.sin;
    } else {
      c = std::cos(static_cast<double>(at) * frequencies[i]);
      s = std::sin(static_cast<double>(at) * frequencies[i]);
    }
    cos[i] = static_cast<float>(c * magnitude);
    sin[i] = static_cast<float>(s * sign);
  }
}

// Those of the table, or `of_length`, which is written.
const std::vector<double>& RopeTable::frequencies_at(uint64_t kv_len,
                                                     std::vector<double>& of_length) const {
  if (!turns_by_length(kv_len)) return frequencies_;
  return of_length = rope_frequencies(config_, kv_len);
}

void RopeTable::angles(std::span<const uint32_t> pos, uint64_t kv_len, float* cos,
                       float* sin) const {
  std::vector<double> of_length;
  const std::vector<double>& frequencies = frequencies_at(kv_len, of_length);
  for (size_t token = 0; token < pos.size(); ++token)
    turn(frequencies, static_cast<int64_t>(pos[token]), magnitude_, cos + token * n_pairs(),
         sin + token * n_pairs());
}

template <class Pos>
void RopeTable::rotate(float* x, uint32_t n_tokens, const Heads& heads, std::span<const Pos> pos,
                       double magnitude, uint64_t kv_len) const {
  if (pos.size() != n_tokens || heads.head_dim < config_.n_dims) {
    throw Error(ErrorKind::kInternal, "RoPE: got " + std::to_string(pos.size()) +
                                          " positions for " + std::to_string(n_tokens) +
                                          " tokens of head_dim " + std::to_string(heads.head_dim));
  }
  std::vector<double> of_length;
  const std::vector<double>& frequencies = frequencies_at(kv_len, of_length);
  const size_t width = size_t{heads.n_heads} * heads.head_dim;
  const auto tokens = [&](uint64_t begin, uint64_t end, uint32_t) {
    std::array<float, kMaxPairs> cos, sin;
    for (uint64_t token = begin; token < end; ++token) {
      if (token == begin || pos[token] != pos[token - 1]) {
        turn(frequencies, static_cast<int64_t>(pos[token]), magnitude, cos.data(), sin.data());
      }
      kernels::rotate_rows(config_.pairing, cos.data(), sin.data(), frequencies.size(),
                           x + token * width, heads.n_heads, heads.head_dim);
    }
  };
  if (!pool_ || n_tokens * width < kWorthSharing) return tokens(0, n_tokens, 0);
  pool_->parallel_for(n_tokens, 0, tokens);
}

void RopeTable::apply(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
                      std::span<const uint32_t> pos, uint64_t kv_len) const {
  rotate(x, n_tokens, {n_heads, head_dim}, pos, magnitude_, kv_len);
}

void RopeTable::shift(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
                      std::span<const int32_t> delta, uint64_t kv_len) const {
  rotate(x, n_tokens, {n_heads, head_dim}, delta, 1.0, kv_len);
}

}  // namespace kvasir
