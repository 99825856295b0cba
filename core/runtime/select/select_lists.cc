// Selection for a prompt's queries block by block, and what selectors contribute to the attention
// themselves; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/runtime/select/select_stage.h"

namespace kvasir {
namespace {

// A list as far as a query block may choose: the selector chose among what the last one may.
std::vector<HeadSelection> clipped(std::vector<HeadSelection> heads, uint32_t width,
                                   const Candidates& candidates) {
  for (HeadSelection& head : heads) {
    const auto at = [&](uint32_t unit) {
      return std::lower_bound(head.index.begin(), head.index.end(), unit) - head.index.begin();
    };
    const ptrdiff_t begin = at(candidates.begin), end = std::max(begin, at(candidates.end));
    head.index.assign(head.index.begin() + begin, head.index.begin() + end);
    if (!head.weight.empty())
      head.weight.assign(head.weight.begin() + begin * width, head.weight.begin() + end * width);
  }
  return heads;
}

std::vector<Piece> divided(const Piece& piece, uint32_t query_block) {
  std::vector<Piece> pieces;
  for (uint32_t at = 0; at < piece.n_q; at += query_block) {
    Piece& part = pieces.emplace_back(piece);
    part.q_begin += at;
    part.n_q = std::min(query_block, piece.n_q - at);
    part.kv_len = piece.first_pos() + at + part.n_q;
  }
  return pieces;
}

}  // namespace

SelectStage::Lists SelectStage::select_lists(uint32_t layer, const Piece& piece,
                                             const Inputs& inputs, uint32_t query_block) {
  contribution_.lse.clear();
  if (piece.n_q == 0) return {};
  Lists whole{{piece}, std::vector<LayerSelection>(1)};
  whole.selections[0].valid = whole.selections[0].dense = true;
  if (c_.dense_layer[layer]) return whole;
  Lists out{divided(piece, query_block ? query_block : piece.n_q), {}};
  LayerSelection& kept = piece.seq->layers[layer].selection;  // a decoded token chooses anew
  LayerSelection asked;
  std::vector<Work> works{start(layer, out.pieces.back())};
  works[0].piece = piece;
  works[0].out = &asked;
  works[0].keeps_lists = true;
  works[0].query_block = query_block;
  works[0].n_lists = static_cast<uint32_t>(out.pieces.size());
  const uint32_t per = works[0].candidates.unit == KVASIR_UNIT_BLOCK ? c_.geometry.block_size : 1;
  for (const Piece& part : out.pieces)
    if (query_block)
      works[0].list_end.push_back(
          forced_range(c_.cache, c_.forced_unit(), part.first_pos() + 1, part.seq->prompt_end)
              .window_begin /
          per);
  run_chain(0, layer, works, inputs);
  Work& work = works[0];
  const bool restricted = !piece.seq->layers[layer].restricted.empty();
  if (work.failed || (work.bypassed && !restricted)) {
    kept = {};
    return whole;
  }
  for (size_t i = 0; i < out.pieces.size(); ++i) {
    Work part = start(layer, out.pieces[i]);
    part.bypassed = false;  // was counted
    if (!work.bypassed) {
      const Work::List& list = work.lists[work.lists.size() == 1 ? 0 : i];
      part.failed = list.fallback;
      narrow(part, clipped(list.heads, list.width, part.candidates), list.width);
    }
    finish(part);
    out.selections.push_back(std::exchange(kept, {}));
  }
  return out;
}

void SelectStage::take_lists(Work& work, const ListBuffer& result, uint32_t row) {
  const uint32_t n = result.view.query_block ? work.n_lists : 1;
  const std::vector<Piece> parts =
      n > 1 ? divided(work.piece, work.query_block) : std::vector<Piece>{work.piece};
  for (uint32_t i = 0; i < n; ++i) {
    Work::List& list = work.lists.emplace_back();
    list.heads = heads_of(result.view, row, c_.geometry.n_q_heads, c_.geometry.n_kv_heads,
                          work.candidates, &list.width, &list.fallback, i, n);
    if (list.fallback)
      ++counters(work).fallbacks;
    else
      take_contribution(result, parts[i]);
  }
}

bool SelectStage::take_contribution(const ListBuffer& result, const Piece& piece) {
  if (!(result.view.flags & KVASIR_SELECTION_CONTRIBUTES)) return false;
  if (contribution_.lse.empty()) {
    contribution_.o.assign(result.o.size(), 0.0f);
    contribution_.lse.assign(result.lse.size(), -INFINITY);
  }
  const auto copy = [&](const std::vector<float>& from, std::vector<float>& to, uint64_t width) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(piece.q_begin * width), piece.n_q * width,
                to.begin() + static_cast<ptrdiff_t>(piece.q_begin * width));
  };
  copy(result.o, contribution_.o, uint64_t{c_.geometry.n_q_heads} * c_.geometry.v_dim);
  copy(result.lse, contribution_.lse, c_.geometry.n_q_heads);
  return true;
}

std::string SelectStage::check_contribution(const ListBuffer& result,
                                            const std::vector<Piece>& pieces) const {
  if (!(result.view.flags & KVASIR_SELECTION_CONTRIBUTES)) return "";
  const uint64_t heads = c_.geometry.n_q_heads, dim = c_.geometry.v_dim;
  for (const Piece& piece : pieces)
    for (uint64_t i = piece.q_begin * heads; i < (uint64_t{piece.q_begin} + piece.n_q) * heads;
         ++i) {
      const std::string where =
          " of query " + std::to_string(i / heads) + ", head " + std::to_string(i % heads);
      if (std::isnan(result.lse[i]) || result.lse[i] == INFINITY)
        return "contribution" + where + ": lse is NaN or +inf";
      if (result.lse[i] == -INFINITY) continue;
      for (uint64_t d = i * dim; d < (i + 1) * dim; ++d)
        if (!std::isfinite(result.o[d])) return "contribution" + where + ": o is not finite";
    }
  return "";
}

}  // namespace kvasir
