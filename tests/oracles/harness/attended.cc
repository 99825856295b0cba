// See attended.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/attended.h"
#include "tests/support/larger_or_nan.h"

namespace kvasir::oracle {
namespace {

using test::RecordedRange;
using test::RecordedRun;

// Whether the query at `pos` sees token t of the range.
bool sees(const RecordedRange& range, uint32_t pos, uint32_t t) {
  return t <= pos && pos - t >= range.dist_min && pos - t < range.dist_max;
}

}  // namespace

std::vector<Indices> tokens_by_head(const RecordedRun& run, SequenceId id, uint32_t n_kv_heads,
                                    bool once) {
  std::vector<Indices> out(n_kv_heads);
  for (const RecordedRange& range : run.ranges) {
    if (range.seq != id) continue;
    for (const uint32_t t : range.token) {
      const uint32_t first = std::max(t, range.kv_len - range.n_q);
      // Distances grow with the position: the first query that is far enough is the nearest.
      const uint32_t pos = std::max(first, t + range.dist_min);
      if (pos < range.kv_len && sees(range, pos, t)) out[range.kv_head].push_back(t);
    }
  }
  for (Indices& tokens : out) {
    std::sort(tokens.begin(), tokens.end());
    if (once) tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  }
  return out;
}

std::vector<std::vector<Vector>> weights_by_head(const RecordedRun& run, SequenceId id,
                                                 const std::vector<Indices>& tokens,
                                                 uint32_t group) {
  std::vector<std::vector<Vector>> out;
  for (const Indices& of : tokens) out.emplace_back(of.size(), Vector(group, 0.0));
  for (const RecordedRange& range : run.ranges) {
    if (range.seq != id || range.weight_width == 0) continue;
    const Indices& of = tokens[range.kv_head];
    for (size_t i = 0; i < range.token.size(); ++i) {
      const auto at = std::lower_bound(of.begin(), of.end(), range.token[i]) - of.begin();
      for (uint32_t h = 0; h < group; ++h)
        out[range.kv_head][static_cast<size_t>(at)][h] =
            double{range.weight[i * range.weight_width + (range.weight_width > 1 ? h : 0)]};
    }
  }
  return out;
}

double output_error(const RecordedRun& run, SequenceId id, const Track& track,
                    const Placing& placing, const float* o) {
  const Heads& heads = track.shape().heads;
  const uint32_t pos = track.size() - 1, group = heads.group(), far = placing.constant_distance;
  double worst = 0;
  for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
    Vectors k, v, logit(group), weight;  // k: by slot only, else the track's
    Indices token;
    std::vector<bool> is_far;
    for (const RecordedRange& range : run.ranges) {
      if (range.seq != id || range.kv_head != g) continue;
      for (size_t i = 0; i < range.token.size(); ++i) {
        if (!sees(range, pos, range.token[i])) continue;
        token.push_back(range.token[i]);
        is_far.push_back(far > 0 && range.dist_min == far);
        v.push_back(track.v(run.layer, g)[token.back()]);
        weight.emplace_back(group, 0.0);
        for (uint32_t h = 0; h < group && range.weight_width > 0; ++h)
          weight.back()[h] =
              double{range.weight[i * range.weight_width + (range.weight_width > 1 ? h : 0)]};
      }
    }
    if (placing.by_slot) k = track.k_by_slot(run.layer, g, token);
    for (uint32_t m = 0; m < group; ++m) {
      const uint32_t h = g * group + m;
      const double at = placing.by_slot ? static_cast<double>(token.size()) - 1 : pos;
      const Vector q = track.q_at(run.layer, h, pos, at);
      const Vector q_far = far > 0 ? track.q_at(run.layer, h, pos, far - 1) : Vector{};
      for (size_t i = 0; i < token.size(); ++i) {
        const double product = placing.by_slot ? dot(q, k[i])
                               : is_far[i]     ? dot(q_far, track.k_raw(run.layer, g)[token[i]])
                                               : dot(q, track.k(run.layer, g)[token[i]]);
        logit[m].push_back(track.scale() * product + weight[i][m]);
      }
      const Partial exact = attend(logit[m], v, heads.head_dim);
      for (uint32_t d = 0; d < heads.head_dim; ++d)
        worst =
            test::larger_or_nan(worst, std::abs(exact.o[d] - double{o[h * heads.head_dim + d]}));
    }
  }
  return worst;
}

}  // namespace kvasir::oracle
