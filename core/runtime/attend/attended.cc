// Counting and reporting what was attended to; see attended.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/attended.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/runtime/select/index_lists.h"
#include "core/runtime/sequence/sliding_window.h"

namespace kvasir {
namespace {

struct TokenCount {
  uint64_t selected = 0;
  uint64_t attended = 0;  // the forced ones included
};

// Of one kv head.
TokenCount tokens_of(const RunContext& c, const Piece& piece, const LayerSelection& selection,
                     const LayerState& state, uint32_t head) {
  const uint64_t dead = state.dead.empty() ? 0 : state.dead[head].size() - state.live[head].size();
  if (selection.dense) {
    const ForcedRange forced =
        forced_range(c.cache, c.forced_unit(), piece.first_pos() + 1, piece.seq->prompt_end);
    return {forced.window_begin - forced.sink_end - dead, piece.kv_len - dead};
  }
  const HeadSelection& chosen = selection.head(head);
  const uint32_t per = selection.unit == KVASIR_UNIT_BLOCK ? c.geometry.block_size : 1;
  uint64_t selected = chosen.index.size() * per;
  if (dead && per > 1) {
    selected = 0;
    for (const uint32_t block : chosen.index)
      for (uint32_t t = 0; t < per; ++t) selected += !is_dead(state, head, block * per + t);
  }
  return {selected, selected + selection.sink_end + (piece.kv_len - selection.window_begin)};
}

uint64_t bytes_per_token(const kvasir_kv_format& format) {  // of one kv head
  return format.k_token_stride + format.v_token_stride;
}

}  // namespace

void count_tokens(const RunContext& c, uint32_t layer, const Piece& piece,
                  const LayerSelection& selection) {
  const LayerState& state = piece.seq->layers[layer];
  const uint64_t bytes = bytes_per_token(c.store.formats()[0]);
  Engagement& e = c.counters.of(piece.prefills());
  if (const uint32_t window = c.sliding_window(layer)) {
    const uint64_t tokens =
        uint64_t{c.geometry.n_kv_heads} * (piece.kv_len - first_seen(piece.first_pos(), window));
    e.sliding_tokens += tokens;
    if (!c.store.has_window()) e.kv_bytes_read += tokens * bytes;
    return;
  }
  for (uint32_t head = 0; head < c.geometry.n_kv_heads; ++head) {
    const TokenCount tokens = tokens_of(c, piece, selection, state, head);
    e.tokens_considered += piece.kv_len;
    e.tokens_selected += tokens.selected;
    e.tokens_attended += tokens.attended;
    if (!c.store.has_window()) e.kv_bytes_read += tokens.attended * bytes;
  }
}

void count_split_bytes(const RunContext& c, const Piece& piece, const std::deque<Part>& parts,
                       size_t first_part) {
  Engagement& e = c.counters.of(piece.prefills());
  for (size_t p = first_part; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const auto& formats = c.store.formats();
    uint64_t tokens = 0;
    for (const uint32_t item : part.items)
      tokens += part.in_blocks() ? part.leases[item].n_tokens : 1;
    const uint64_t bytes =
        tokens * bytes_per_token(part.in_window ? formats.back() : formats.front());
    e.kv_bytes_read += bytes;
    if (part.in_window) e.window_kv_bytes_read += bytes;
  }
}

void report_attended(const RunContext& c, const Pass& pass, const std::deque<Part>& parts) {
  for (const Piece& piece : pass.pieces) {
    std::vector<std::vector<uint32_t>> tokens(c.geometry.n_kv_heads);
    for (const Part& part : parts) {
      if (part.place != piece.place) continue;
      for (const kvasir_attn_range& range : part.ranges)
        for_each_key(part, range, c.geometry.block_size,
                     [&](uint32_t pos) { tokens[range.kv_head].push_back(pos); });
    }
    for (uint32_t head = 0; head < tokens.size(); ++head) {  // parts may share tokens
      std::sort(tokens[head].begin(), tokens[head].end());
      tokens[head].erase(std::unique(tokens[head].begin(), tokens[head].end()), tokens[head].end());
      c.on_attend(pass.layer, piece.seq->id, head, tokens[head]);
    }
  }
}

}  // namespace kvasir
