// A lane in a layer; see lane_layer.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/lane_layer.h"

#include <algorithm>
#include <vector>

#include "core/runtime/select/index_lists.h"
#include "core/runtime/sequence/sliding_window.h"
#include "core/runtime/step/given.h"
#include "core/runtime/step/recompute.h"

namespace kvasir {
namespace {

// What the pieces do in a round: their n-th token, where they have drafts, or all they have.
std::vector<Piece> pieces_of_round(const Lane& lane, uint32_t round) {
  std::vector<Piece> pieces;
  for (Piece piece : lane.pieces) {
    if (!piece.drafts && round > 0) continue;
    if (piece.drafts) {
      if (round >= piece.n_q) continue;
      piece.kv_len = piece.first_pos() + round + 1;
      piece.q_begin += round;
      piece.n_q = 1;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

// For the life of this object sequences with drafts stand where they would after `round` steps.
class AtRound {
 public:
  AtRound(const Lane& lane, uint32_t layer, uint32_t round) : layer_(layer), round_(round) {
    const uint32_t leader = lane.run.context.group_leader[layer];
    for (const Piece& piece : lane.pieces) {
      if (!piece.drafts || round >= piece.n_q) continue;
      piece.seq->decode_index += round;
      LayerState& led = piece.seq->layers[leader];
      if (leader != layer) led.selection = led.drafted[round];
      seqs_.push_back(piece.seq);
    }
  }
  ~AtRound() {
    for (Sequence* seq : seqs_) {
      seq->decode_index -= round_;
      seq->layers[layer_].drafted.push_back(seq->layers[layer_].selection);
    }
  }
  AtRound(const AtRound&) = delete;

 private:
  uint32_t layer_, round_;
  std::vector<Sequence*> seqs_;
};

// Seals the blocks that the pieces filled.
void seal(StrategyRun& run, const Pass& pass) {
  const uint32_t b = run.geometry().block_size;
  std::vector<BlockStore::Full> full;
  for (const Piece& piece : pass.pieces)
    full.push_back({&piece.seq->layers[pass.layer], piece.first_pos() / b, piece.kv_len / b,
                    &piece.seq->content});
  together_or_alone(pass.pieces, full, [&](auto all) { run.store->seal(all); });
}

// Hybrid mode: blocks that have left the window move to the context's storage. Drafts may be
// rejected: they push nothing out of the window.
void to_context(StrategyRun& run, uint32_t layer, const std::vector<Piece>& pieces) {
  if (!run.store->has_window()) return;
  std::vector<BlockStore::Leaving> leaving;
  for (const Piece& piece : pieces) {
    const uint32_t n = piece.drafts ? piece.first_pos() : piece.kv_len;
    const ForcedRange next =
        forced_range(run.context.cache, KVASIR_UNIT_BLOCK, n + 1, piece.seq->prompt_end);
    leaving.push_back(
        {&piece.seq->layers[layer], layer, next.window_begin / run.geometry().block_size});
  }
  together_or_alone(pieces, leaving, [&](auto all) { run.store->leave_window(all); });
}

// A layer with a sliding window keeps what later queries see. Drafts may be rejected.
void let_go_unseen(const StrategyRun& run, uint32_t layer, const Piece& piece) {
  const uint32_t window = run.context.sliding_window(layer);
  if (window == 0) return;
  const uint32_t n = piece.drafts ? piece.first_pos() : piece.kv_len;
  BlockList& list = piece.seq->layers[layer];
  for (uint32_t block = blocks_let_go(n, window, run.geometry().block_size); block-- > 0;) {
    if (!list.blocks[block]) break;
    list.blocks[block].reset();
    list.leases[block] = {};
  }
}

}  // namespace

Pass LaneLayer::pass_of(const Lane& lane, uint32_t layer, std::vector<Piece> pieces) const {
  return {layer, std::move(pieces), b_.activations(lane.run.binding->constant_positions)};
}

void LaneLayer::run(Lane& lane, uint32_t layer) {
  uint32_t n_rounds = 1;
  for (const Piece& piece : lane.pieces)
    if (piece.drafts) n_rounds = std::max(n_rounds, piece.n_q);
  run_first_round(lane, layer);
  for (uint32_t round = 1; round < n_rounds; ++round)
    timer_.in_lane(lane, [&] { run_round(lane, layer, round); });
  timer_.in_lane(lane, [&] { finish(lane, layer); });
}

void LaneLayer::run_round(Lane& lane, uint32_t layer, uint32_t round) {
  const AtRound scope(lane, layer, round);
  Pass pass = pass_of(lane, layer, pieces_of_round(lane, round));
  append(lane, pass);
  guard_pieces(pass.pieces, [&] { attend(lane, pass); });
  lane.drop_failed();
}

void LaneLayer::run_first_round(Lane& lane, uint32_t layer) {
  const AtRound scope(lane, layer, 0);
  Pass pass = pass_of(lane, layer, pieces_of_round(lane, 0));
  timer_.in_lane(lane, [&] { append(lane, pass); });
  lane.drop_failed();
  for (Lane::Followers& f : lane.followers)
    timer_.in_lane(*f.lane, [&] { guard_pieces(f.pieces, [&] { lead(f, layer); }); });
  timer_.in_lane(lane, [&] { guard_pieces(pass.pieces, [&] { attend(lane, pass); }); });
  lane.drop_failed();
  for (Lane::Followers& f : lane.followers)
    timer_.in_lane(*f.lane, [&] { guard_pieces(f.pieces, [&] { follow(lane, f, layer); }); });
  timer_.in_lane(lane, [&] {
    guard_pieces(lane.pieces,
                 [&] { lane.run.update.prompt_end(pass_of(lane, layer, lane.pieces)); });
    lane.drop_failed();
  });
}

void LaneLayer::finish(Lane& lane, uint32_t layer) {
  for (Lane::Redo& redo : lane.redone)
    guard_piece(redo.piece, [&] {
      if (redo.placing) place_layer(lane, redo, layer);
      recompute_layer(lane, redo, layer, b_);
    });
  lane.drop_failed();
  const BlockStore::LetGoTogether together(*lane.run.store);
  std::vector<Piece> grown = lane.pieces;
  for (const Lane::Redo& redo : lane.redone)
    if (redo.placing) grown.push_back(redo.piece);
  to_context(lane.run, layer, grown);
  for (const Piece& piece : lane.pieces) {
    lane.run.release_step(piece.seq->layers[layer]);
    let_go_unseen(lane.run, layer, piece);
  }
}

void LaneLayer::append(Lane& lane, Pass& pass) {
  try_together(pass.pieces.size(), [&] {
    std::vector<BlockStore::Growth> growths;
    for (const Piece& piece : pass.pieces)
      growths.push_back({&piece.seq->layers[pass.layer], pass.layer, piece.kv_len});
    lane.run.store->open_blocks(growths);
  });
  for (const Piece& piece : pass.pieces)
    guard_piece(piece, [&] {
      lane.run.store->append(piece.seq->layers[pass.layer], pass.layer, piece.first_pos(),
                             b_.kv_of(piece), piece.n_q);
    });
  pass.drop_failed();
  if (pass.pieces.empty()) return;
  guard_pieces(pass.pieces, [&] { lane.run.update.appended(pass); });
  pass.drop_failed();
}

void LaneLayer::attend(Lane& lane, Pass& pass) {
  seal(lane.run, pass);
  pass.drop_failed();
  lane.run.observe.prompt_queries(pass);
  pass.drop_failed();
  Pass attended = pass.with({}), unattended = pass.with({});
  for (const Piece& piece : pass.pieces) {
    const Piece queries = attended_of(lane, pass.layer, piece);
    if (queries.n_q > 0)
      attended.pieces.push_back(queries);
    else
      unattended.pieces.push_back(piece);
  }
  lane.run.update.left_window(unattended);
  attend_queries(lane, attended);
}

Piece LaneLayer::attended_of(const Lane& lane, uint32_t layer, const Piece& piece) const {
  const bool selects = lane.run.context.selects_in_prefill();
  const bool ends_layers = piece.prefills() && b_.computes_what_is_wanted(layer);
  if (!piece.given && (!ends_layers || selects)) return piece;
  uint32_t n = lane.run.observe.n_asked(layer, piece);
  for (const Lane::Followers& f : lane.followers)
    n = std::max(n, f.lane->run.observe.n_asked(layer, piece));
  if (!piece.given) {
    n = std::max(n, b_.n_wanted(piece));
  } else if (piece.given_to == GivenTo::kFew) {
    const bool ends = piece.flags & KVASIR_STEP_LAST_PIECE;
    n = std::min(n, ends ? kGivenQueriesAtEnd : kGivenQueriesPerPiece);
  } else if (selects) {
    n = piece.n_q;
  }
  Piece out = piece;
  out.q_begin += piece.n_q - n;
  out.n_q = n;
  return out;
}

void LaneLayer::attend_queries(Lane& lane, const Pass& pass) {
  const bool slices = lane.run.context.selects_in_prefill();
  const auto is_sliced = [&](const Piece& piece) { return slices && piece.prefills(); };
  const Pass sliced = pass.only(is_sliced);
  Pass together = pass.only([&](const Piece& piece) { return !is_sliced(piece); });
  if (!together.pieces.empty()) attend_pieces(lane, together);
  for (const Piece& piece : together.pieces)  // followers find their piece by its place
    for (Piece& own : lane.pieces)
      if (own.seq == piece.seq) own.place = piece.place;
  for (const Piece& piece : sliced.pieces) attend_slices(lane, sliced.with({piece}));
}

void LaneLayer::attend_pieces(Lane& lane, Pass& pass) {
  StrategyRun& run = lane.run;
  std::vector<const LayerSelection*> selections;
  StepTimer::in_part(lane.choose_nanos, [&] { selections = run.select.select(pass); });
  StepTimer::in_part(lane.attend_nanos, [&] {
    const AttentionRows rows = b_.attention_rows();
    if (run.select.has_unread() &&
        run.attend.attend_unread(pass, selections, rows, run.select.lists_there(),
                                 [&](FiniteQuestion* o) { return run.select.read_lists(o); }))
      return;
    run.attend.attend(pass, selections, run.select.contribution(), rows);
  });
  run.observe.observe(pass, run.attend);
  run.update.left_window(pass.living());
}

void LaneLayer::attend_slices(Lane& lane, const Pass& pass) {
  const Piece& piece = pass.pieces[0];
  for (const Piece& part : piece.divided(lane.run.slice_tokens)) {
    if (piece.has_failed()) return;
    Pass of_part = pass.with({part});
    guard_piece(part, [&] {
      if (lane.run.query_block || lane.run.dense_last_queries)
        attend_lists(lane, of_part);
      else
        attend_pieces(lane, of_part);
    });
  }
}

// The queries that end the prompt and attend to everything are one more piece, in the same call of
// the backend.
void LaneLayer::attend_lists(Lane& lane, const Pass& pass) {
  StrategyRun& run = lane.run;
  const Piece& piece = pass.pieces[0];
  const uint32_t end = piece.seq->prompt_end;
  const uint32_t dense_from = end - std::min(run.dense_last_queries, end);
  Piece chosen = piece, dense = piece;
  chosen.kv_len = std::clamp(dense_from, piece.first_pos(), piece.kv_len);
  chosen.n_q = chosen.kv_len - piece.first_pos();
  dense.n_q -= chosen.n_q;
  dense.q_begin += chosen.n_q;
  SelectStage::Lists lists;
  StepTimer::in_part(lane.choose_nanos, [&] {
    lists = run.select.select_lists(pass.with({chosen}), run.query_block);
  });
  if (dense.n_q) {
    lists.pieces.push_back(dense);
    lists.selections.push_back(LayerSelection::everything());
  }
  std::vector<const LayerSelection*> selections;
  for (const LayerSelection& selection : lists.selections) selections.push_back(&selection);
  Piece whole = piece;
  whole.place = 0;
  whole.n_places = static_cast<uint32_t>(lists.pieces.size());
  Pass divided = pass.with(std::move(lists.pieces));
  StepTimer::in_part(lane.attend_nanos, [&] {
    run.attend.attend(divided, selections, run.select.contribution(), b_.attention_rows());
  });
  run.observe.observe(pass.with({whole}).living(), run.attend);
  run.update.left_window(pass.with({whole}).living());
}

// Followers read the leader's blocks, the open one too, and tell their own plugins of them.
void LaneLayer::lead(Lane::Followers& f, uint32_t layer) {
  for (size_t i = 0; i < f.pieces.size(); ++i)
    f.lane->run.store->share(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer]);
  f.lane->run.update.appended(pass_of(*f.lane, layer, f.pieces));
}

void LaneLayer::follow(const Lane& lane, Lane::Followers& f, uint32_t layer) {
  StrategyRun& run = f.lane->run;
  for (size_t i = 0; i < f.pieces.size(); ++i) {
    run.store->share(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer]);
    for (const Piece& piece : lane.pieces)
      if (piece.seq == f.leaders[i]) f.pieces[i].place = piece.place;
  }
  run.observe.prompt_queries(pass_of(*f.lane, layer, f.pieces));
  const Pass pass = pass_of(*f.lane, layer, f.pieces);
  Pass attended = pass.with({});
  for (const Piece& piece : pass.pieces) {
    const Piece queries = attended_of(lane, layer, piece);
    if (queries.n_q > 0) attended.pieces.push_back(queries);
  }
  if (!attended.pieces.empty()) {
    run.attend.adopt(lane.run.attend);
    run.observe.observe(attended, run.attend);
  }
  run.update.left_window(pass.living());
  run.update.prompt_end(pass.living());
  const BlockStore::LetGoTogether together(*run.store);
  for (const Piece& piece : f.pieces) run.release_step(piece.seq->layers[layer]);
}

}  // namespace kvasir
