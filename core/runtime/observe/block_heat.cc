// See block_heat.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/block_heat.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr float kUnknown = -1.0f;

// value [blocks of the sequence], kUnknown where nothing is to be told.
void add(const LayerState& layer, const std::vector<float>& value,
         std::vector<BlockStore::Heat>& to) {
  for (uint32_t block = 0; block < value.size(); ++block)
    if (value[block] != kUnknown) to.push_back({&layer, block, value[block]});
}

}  // namespace

void tell_mass(const RunContext& c, const Pass& pass, AttendStage& attention) {
  const Pass told = pass.only(
      [&](const Piece& piece) { return !piece.has_failed() && c.heats_by_mass(piece.prefills()); });
  if (told.pieces.empty()) return;
  const std::vector<uint32_t> from_pos(told.pieces.size(), 0);
  const auto mass = attention.mass(told, from_pos, false, true);
  std::vector<BlockStore::Heat> heat;
  for (size_t i = 0; i < told.pieces.size(); ++i) {
    const LayerState& layer = told.pieces[i].seq->layers[pass.layer];
    std::vector<float> of_block(layer.blocks.size(), kUnknown);
    const auto n = static_cast<float>(uint64_t{told.pieces[i].n_q} * c.geometry.n_q_heads);
    for (const HeadMass& head : mass[i])
      for (size_t key = 0; key < head.pos.size(); ++key) {
        float& sum = of_block[head.pos[key] / c.geometry.block_size];
        sum = std::max(sum, 0.0f);
        for (uint32_t g = 0; g < c.group_size(); ++g)
          sum += head.value[key * c.group_size() + g] / n;
      }
    add(layer, of_block, heat);
  }
  c.store.tell_heat(heat);
}

void tell_scores(const RunContext& c, const Pass& pass,
                 const std::vector<const Candidates*>& candidates, const Scores& scores) {
  std::vector<BlockStore::Heat> heat;
  for (size_t i = 0; i < pass.pieces.size(); ++i) {
    const LayerState& layer = pass.pieces[i].seq->layers[pass.layer];
    std::vector<float> of_block(layer.blocks.size(), kUnknown);
    for (uint32_t head = 0; head < scores.n_heads; ++head) {
      const size_t list = i * scores.n_heads + head;
      const float* begin = scores.value.data() + scores.offsets[list];
      const float* end = scores.value.data() + scores.offsets[list + 1];
      if (begin == end) continue;
      const float best = *std::max_element(begin, end);
      const Candidates& from = *candidates[i];
      for (size_t at = 0; begin + at < end; ++at) {
        const uint32_t block =
            from.listed ? from.heads[head].index[at] : from.begin + static_cast<uint32_t>(at);
        const float value = std::exp(c.geometry.softmax_scale * (begin[at] - best));
        of_block[block] = std::max(of_block[block], value);
      }
    }
    add(layer, of_block, heat);
  }
  c.store.tell_heat(heat);
}

}  // namespace kvasir
