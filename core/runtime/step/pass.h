// What goes through a layer together: pieces of sequences of one strategy, and what the model
// computed of their tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "core/runtime/sequence/sequence.h"
#include "core/runtime/step/given.h"
#include "core/runtime/step/model_rows.h"

namespace kvasir {

// Tokens [kv_len - n_q, kv_len) of one sequence: queries [q_begin, q_begin + n_q) of the step.
struct Piece {
  Sequence* seq = nullptr;
  uint32_t q_begin = 0, n_q = 0;
  uint32_t kv_len = 0;  // tokens cached, those of this piece included
  uint32_t phase = KVASIR_PHASE_NONE;
  uint32_t flags = 0;     // KVASIR_STEP_*
  uint32_t place = 0;     // among the pieces that the layer attends together
  uint32_t n_places = 1;  // from place on: pieces that its queries were divided into
  bool drafts = false;    // decodes n_q tokens one after another, to be verified
  bool given = false;     // its queries, keys and values are not the model's (step/given.h)
  GivenTo given_to = GivenTo::kFew;
  uint32_t first_pos() const { return kv_len - n_q; }
  // In order, of `queries` each but the last; 0: of all.
  std::vector<Piece> divided(uint32_t queries) const {
    std::vector<Piece> parts;
    for (uint32_t at = 0; at < n_q; at += parts.back().n_q) {
      Piece& part = parts.emplace_back(*this);
      part.q_begin += at;
      part.n_q = queries ? std::min(queries, n_q - at) : n_q;
      part.kv_len = first_pos() + at + part.n_q;
    }
    return parts;
  }
  bool prefills() const { return phase == KVASIR_PHASE_PREFILL; }
  bool decodes() const { return phase == KVASIR_PHASE_DECODE; }
  bool has_failed() const { return seq->fault != nullptr; }
};

// Queries [begin, end) of a step.
struct QueryRun {
  uint64_t begin = 0, end = 0;
};
// Of the pieces, which follow one another in a run.
inline std::vector<QueryRun> runs_of_queries(const std::vector<Piece>& pieces) {
  std::vector<QueryRun> runs;
  for (const Piece& piece : pieces) {
    if (runs.empty() || runs.back().end != piece.q_begin)
      runs.push_back({piece.q_begin, piece.q_begin});
    runs.back().end += piece.n_q;
  }
  return runs;
}

// Of all queries of the step: Piece::q_begin counts in them.
struct Activations {
  uint64_t n = 0;                     // queries
  const uint32_t* pos = nullptr;      // [n] true positions
  const float* x = nullptr;           // f32 [n][d_model], what the layer projects
  ModelRows q{};                      // [n][n_q_heads][head_dim], rotated to their positions
  const float* q_constant = nullptr;  // rotated to limits.pos_const; null: no selector asks for it
  // What selected keys are attended with.
  ModelRows q_of_selected() const { return q_constant ? ModelRows(q_constant) : q; }
};

struct Pass {
  uint32_t layer = 0;
  std::vector<Piece> pieces;
  Activations in{};

  Pass with(std::vector<Piece> others) const { return {layer, std::move(others), in}; }
  // The pieces for which keep(piece) is true.
  template <class Keep>
  Pass only(Keep&& keep) const {
    Pass out = with({});
    for (const Piece& piece : pieces)
      if (keep(piece)) out.pieces.push_back(piece);
    return out;
  }
  Pass living() const {
    return only([](const Piece& piece) { return !piece.has_failed(); });
  }
  void drop_failed() {
    std::erase_if(pieces, [](const Piece& piece) { return piece.has_failed(); });
  }
};

// Runs fn; what it throws ends the piece's sequence and nobody else's. False when it threw.
template <class Fn>
bool guard_piece(const Piece& piece, Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const std::exception&) {
    piece.seq->fail(std::current_exception());
    return false;
  }
}

// Runs fn, which does for n pieces at once what is then done for each that still lacks it. False
// when it threw: the piece that it concerns meets the error again, alone. Nothing for one piece.
template <class Fn>
bool try_together(size_t n, Fn&& fn) {
  if (n < 2) return false;
  try {
    fn();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Runs fn over all items, of which pieces[i] has items[i]; where that throws, over each alone, and
// what it throws then ends that piece.
template <class Item, class Fn>
void together_or_alone(const std::vector<Piece>& pieces, const std::vector<Item>& items, Fn&& fn) {
  const std::span<const Item> all(items);
  if (try_together(items.size(), [&] { fn(all); })) return;
  for (size_t i = 0; i < items.size(); ++i) guard_piece(pieces[i], [&] { fn(all.subspan(i, 1)); });
}

// What nobody has pinned to one piece ends them all.
template <class Fn>
void guard_pieces(const std::vector<Piece>& pieces, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception&) {
    for (const Piece& piece : pieces) piece.seq->fail(std::current_exception());
  }
}

}  // namespace kvasir
