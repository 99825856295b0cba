// Selection for a prompt's queries block by block; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

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

// `parts`: the piece, divided.
QueryBlocks blocks_of(const RunContext& c, const std::vector<Piece>& parts, uint32_t query_block,
                      uint32_t unit) {
  QueryBlocks blocks;
  blocks.size = query_block;
  blocks.n = static_cast<uint32_t>(parts.size());
  if (!query_block) return blocks;
  const uint32_t tokens_per_unit = unit == KVASIR_UNIT_BLOCK ? c.geometry.block_size : 1;
  for (const Piece& part : parts) {
    const ForcedRange forced =
        forced_range(c.cache, c.forced_unit(), part.first_pos() + 1, part.seq->prompt_end);
    blocks.candidates_end.push_back(forced.window_begin / tokens_per_unit);
  }
  return blocks;
}

}  // namespace

SelectStage::Lists SelectStage::select_lists(const Pass& pass, uint32_t query_block) {
  contribution_.lse.clear();
  const Piece& piece = pass.pieces[0];
  if (piece.n_q == 0) return {};
  Lists whole{{piece}, {LayerSelection::everything()}};
  if (c_.dense_layer[pass.layer]) return whole;
  LayerState& state = piece.seq->layers[pass.layer];
  state.selection = {};  // a decoded token chooses anew
  Lists out{piece.divided(query_block), {}};
  LayerSelection unused;
  // What the last block may choose among holds what the others may.
  std::vector<Choice> choices{Choice::begin(c_, pass.layer, out.pieces.back(), unused)};
  Choice& choice = choices[0];
  choice.piece = piece;
  choice.keeps_lists = true;
  choice.blocks = blocks_of(c_, out.pieces, query_block, choice.candidates.unit);
  run_chain(0, pass, choices);
  if (choice.failed || (choice.bypassed && state.restricted.empty())) return whole;
  out.selections.resize(out.pieces.size());
  for (size_t i = 0; i < out.pieces.size(); ++i) {
    Choice part = Choice::begin(c_, pass.layer, out.pieces[i], out.selections[i]);
    part.bypassed = false;  // was counted
    if (!choice.bypassed) {
      const ChosenList& list = choice.lists[choice.lists.size() == 1 ? 0 : i];
      part.failed = list.fallback;
      part.narrow(clipped(list.heads, list.width, part.candidates), list.width,
                  c_.geometry.n_kv_heads);
    }
    part.finish(counters(part));
  }
  return out;
}

void SelectStage::take_lists(const ListBuffer& lists, uint32_t seq, Choice& choice) {
  const uint32_t n = lists.view.query_block ? choice.blocks.n : 1;
  const std::vector<Piece> parts = choice.piece.divided(n > 1 ? choice.blocks.size : 0);
  for (uint32_t i = 0; i < n; ++i) {
    ChosenList& list = choice.lists.emplace_back();
    list.heads = heads_of(lists.view, seq, c_.geometry.n_q_heads, c_.geometry.n_kv_heads,
                          choice.candidates, &list.width, &list.fallback, i, n);
    if (list.fallback)
      ++counters(choice).fallbacks;
    else
      take_contribution(lists, parts[i], c_.geometry, contribution_);
  }
}

}  // namespace kvasir
