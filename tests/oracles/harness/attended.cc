// See attended.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/attended.h"

namespace kvasir::oracle {
namespace {

using test::RecordedRow;
using test::RecordedRun;

// Whether the query at `pos` sees token t of the row.
bool sees(const RecordedRow& row, uint32_t pos, uint32_t t) {
  return t <= pos && pos - t >= row.dist_min && pos - t < row.dist_max;
}

}  // namespace

std::vector<Indices> tokens_by_head(const RecordedRun& run, SequenceId id, uint32_t n_kv_heads,
                                    bool once) {
  std::vector<Indices> out(n_kv_heads);
  for (const RecordedRow& row : run.ranges) {
    if (row.seq != id) continue;
    for (const uint32_t t : row.token) {
      const uint32_t first = std::max(t, row.kv_len - row.n_q);
      // Distances grow with the position: the first query that is far enough is the nearest.
      const uint32_t pos = std::max(first, t + row.dist_min);
      if (pos < row.kv_len && sees(row, pos, t)) out[row.kv_head].push_back(t);
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
  for (const RecordedRow& row : run.ranges) {
    if (row.seq != id || row.weight_width == 0) continue;
    const Indices& of = tokens[row.kv_head];
    for (size_t i = 0; i < row.token.size(); ++i) {
      const auto at = std::lower_bound(of.begin(), of.end(), row.token[i]) - of.begin();
      for (uint32_t h = 0; h < group; ++h)
        out[row.kv_head][static_cast<size_t>(at)][h] =
            double{row.weight[i * row.weight_width + (row.weight_width > 1 ? h : 0)]};
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
    Rows k, v, logit(group), weight;  // k: by slot only, else the track's
    Indices token;
    std::vector<bool> is_far;
    for (const RecordedRow& row : run.ranges) {
      if (row.seq != id || row.kv_head != g) continue;
      for (size_t i = 0; i < row.token.size(); ++i) {
        if (!sees(row, pos, row.token[i])) continue;
        token.push_back(row.token[i]);
        is_far.push_back(far > 0 && row.dist_min == far);
        v.push_back(track.v(run.layer, g)[token.back()]);
        weight.emplace_back(group, 0.0);
        for (uint32_t h = 0; h < group && row.weight_width > 0; ++h)
          weight.back()[h] =
              double{row.weight[i * row.weight_width + (row.weight_width > 1 ? h : 0)]};
      }
    }
    if (placing.by_slot) k = track.k_by_slot(run.layer, g, token);
    for (uint32_t m = 0; m < group; ++m) {
      const uint32_t h = g * group + m;
      const double at = placing.by_slot ? static_cast<double>(token.size()) - 1 : pos;
      const Vector q = track.q_at(run.layer, h, pos, at);
      const Vector q_far = track.q_at(run.layer, h, pos, far > 0 ? far - 1 : pos);
      for (size_t i = 0; i < token.size(); ++i) {
        const double product = placing.by_slot ? dot(q, k[i])
                               : is_far[i]     ? dot(q_far, track.k_raw(run.layer, g)[token[i]])
                                               : dot(q, track.k(run.layer, g)[token[i]]);
        logit[m].push_back(track.scale() * product + weight[i][m]);
      }
      const Partial exact = attend(logit[m], v, heads.head_dim);
      for (uint32_t d = 0; d < heads.head_dim; ++d)
        worst = std::max(worst, std::abs(exact.o[d] - double{o[h * heads.head_dim + d]}));
    }
  }
  return worst;
}

}  // namespace kvasir::oracle
