// Updates, observation, eviction; see state_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/state_stage.h"

#include <algorithm>

#include "core/runtime/blocks/memory_kinds.h"

namespace kvasir {
namespace {

std::string fault_of(kvasir_status status) {
  return status == KVASIR_OK ? "" : "returned status " + std::to_string(status);
}

bool wants_prompt_end(const SlabOwner& owner) {
  return owner.layout.flags & (KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_PROMPT_END_ALL) ||
         (owner.selector && owner.selector->limits().flags & KVASIR_LIMIT_WANT_PROMPT_END);
}

// First position whose query counts when the last `wanted` queries of the prompt do.
uint32_t first_counted(const Sequence& seq, uint32_t wanted) {
  return wanted >= seq.prompt_end ? 0 : seq.prompt_end - wanted;
}

}  // namespace

// The call cannot be made again for one sequence at a time: what it has done already is unknown.
template <class Fn>
void StateStage::guarded(Selector& selector, const char* function, uint32_t layer,
                         const std::vector<Piece>& pieces, const char* instead, Fn&& fn) {
  const size_t index = c_.index_of(selector);
  if (c_.aside(index)) return;
  std::string fault;
  try {
    fault = fn();
  } catch (const PluginError& e) {
    fault = e.what();
  }
  if (fault.empty()) return;
  try {
    c_.report_fault(index, function, layer, pieces[0].seq->id, fault, instead);
  } catch (const PluginError&) {  // on_fault = fail
    for (const Piece& piece : pieces) piece.seq->fail(std::current_exception());
  }
}

void StateStage::send(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces,
                      uint32_t moment, std::vector<kvasir_update_item> items) {
  if (items.empty()) return;
  HostCopies copies;
  const Instance& plugin = owner.selector ? static_cast<const Instance&>(*owner.selector)
                                          : static_cast<const Instance&>(*owner.representative);
  copy_unreadable(plugin, items, copies);
  std::vector<Piece> quiet = pieces;  // no queries: candidates are those at kv_len
  for (Piece& piece : quiet) piece.q_begin = piece.n_q = 0;
  const StepBuilder step(c_, moment, layer, quiet, owner.unit(), &owner);
  if (owner.selector)
    return guarded(*owner.selector, "update", layer, pieces, "going on without it",
                   [&] { return fault_of(owner.update(step.step(), items)); });
  if (c_.representative_failed) return;
  try {
    owner.update(step.step(), items);
  } catch (const PluginError& e) {
    try {
      c_.report_representative_fault(e);
    } catch (const PluginError&) {  // on_fault = fail
      for (const Piece& piece : pieces) piece.seq->fail(std::current_exception());
    }
  }
}

void StateStage::copy_unreadable(const Instance& reader, std::vector<kvasir_update_item>& items,
                                 HostCopies& copies) const {
  if (!c_.store.has_window()) return;
  for (kvasir_update_item& item : items) {
    if (!c_.store.in_window(*item.lease)) continue;
    const kvasir_kv_format& format = c_.store.formats()[item.lease->format];
    if (can_read(reader, format)) continue;
    copies.leases.push_back(c_.store.copy_to_host(*item.lease, copies.bytes.emplace_back()));
    item.lease = &copies.leases.back();
  }
}

void StateStage::appended(uint32_t layer, const std::vector<Piece>& pieces) {
  const uint32_t b = c_.geometry.block_size;
  for (SlabOwner& owner : c_.owners) {
    if (c_.dense_layer[layer]) break;
    std::vector<kvasir_update_item> items;
    for (uint32_t r = 0; r < pieces.size(); ++r) {
      LayerState& state = pieces[r].seq->layers[layer];
      const uint32_t begin = pieces[r].first_pos(), end = pieces[r].kv_len;
      if (begin == end) continue;
      if (!(owner.layout.flags & KVASIR_LAYOUT_SEALED_ONLY) || end / b > begin / b)
        owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], begin / b, (end + b - 1) / b);
      for (uint32_t block = begin / b; block * b < end; ++block) {
        const uint32_t first = block == begin / b ? begin % b : 0;
        const uint32_t n_tokens = std::min(b, end - block * b);
        uint32_t item_flags = KVASIR_ITEM_NEW;
        if (n_tokens == b) item_flags |= KVASIR_ITEM_SEALED;
        const bool sealed_only = owner.layout.flags & KVASIR_LAYOUT_SEALED_ONLY;
        if (sealed_only && n_tokens < b) continue;
        const uint32_t from = sealed_only ? 0 : first;
        items.push_back(
            {r, block, from, n_tokens - from, n_tokens, item_flags, &state.leases[block], nullptr});
      }
    }
    send(owner, layer, pieces, KVASIR_MOMENT_APPENDED, items);
  }
}

void StateStage::seal(uint32_t layer, const std::vector<Piece>& pieces) {
  const uint32_t b = c_.geometry.block_size;
  for (const Piece& piece : pieces)
    guard_piece(piece, [&] {
      c_.store.seal(piece.seq->layers[layer], piece.first_pos() / b, piece.kv_len / b,
                    piece.seq->content);
    });
}

void StateStage::left_window(uint32_t layer, const std::vector<Piece>& pieces) {
  if (c_.dense_layer[layer] || pieces.empty()) return;
  const uint32_t b = c_.geometry.block_size;
  const auto window_begin = [&](const Piece& piece, uint32_t n) {
    return forced_range(c_.cache, KVASIR_UNIT_BLOCK, n, piece.seq->prompt_end).window_begin / b;
  };
  std::vector<uint32_t> ends;  // as the next query finds it: what it may choose is FINAL by then
  ends.reserve(pieces.size());
  for (const Piece& piece : pieces) ends.push_back(window_begin(piece, piece.kv_len + 1));
  for (SlabOwner& owner : c_.owners) {
    if (!(owner.layout.flags & KVASIR_LAYOUT_WANT_FINAL) && owner.layout.open_bytes == 0) continue;
    std::vector<kvasir_update_item> items;
    for (uint32_t r = 0; r < pieces.size(); ++r) {
      LayerState& state = pieces[r].seq->layers[layer];
      // A block that a cut brought back leaves again. Its open bytes are gone: what was made of
      // them stands.
      const uint32_t begin =
          owner.layout.open_bytes
              ? state.final_blocks
              : std::min(state.final_blocks, window_begin(pieces[r], pieces[r].first_pos() + 1));
      std::vector<uint32_t> blocks;
      for (uint32_t block = begin; block < ends[r]; ++block) blocks.push_back(block);
      if (!guard_piece(pieces[r], [&] { c_.store.make_resident(state, blocks); })) continue;
      for (const uint32_t block : blocks)
        if (state.blocks[block])
          items.push_back({r, block, b, 0, b, KVASIR_ITEM_FINAL, &state.leases[block], nullptr});
      owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], begin, ends[r]);
    }
    send(owner, layer, pieces, KVASIR_MOMENT_ATTENDED, items);
    for (uint32_t r = 0; r < pieces.size(); ++r)
      owner.slab.free_open(pieces[r].seq->layers[layer].slabs[c_.owner_index(&owner)], ends[r]);
  }
  for (uint32_t r = 0; r < pieces.size(); ++r) {
    uint32_t& final_blocks = pieces[r].seq->layers[layer].final_blocks;
    final_blocks = std::max(final_blocks, ends[r]);
  }
  refresh(layer, pieces);
}

// Drafts may be rejected: they push nothing out of the window.
void StateStage::to_context(uint32_t layer, const Piece& piece) {
  if (!c_.store.has_window()) return;
  const uint32_t n = piece.drafts ? piece.first_pos() : piece.kv_len;
  const ForcedRange next = forced_range(c_.cache, KVASIR_UNIT_BLOCK, n + 1, piece.seq->prompt_end);
  c_.store.leave_window(piece.seq->layers[layer], layer,
                        next.window_begin / c_.geometry.block_size);
}

void StateStage::prompt_end(uint32_t layer, const std::vector<Piece>& pieces) {
  if (c_.dense_layer[layer]) return;
  std::vector<Piece> ended;
  for (const Piece& piece : pieces)
    if (piece.flags & KVASIR_STEP_LAST_PIECE) ended.push_back(piece);
  if (ended.empty()) return;
  for (SlabOwner& owner : c_.owners)
    if (wants_prompt_end(owner)) send_candidates(owner, layer, ended, KVASIR_MOMENT_PROMPT_END);
}

void StateStage::refresh(uint32_t layer, const std::vector<Piece>& pieces) {
  for (SlabOwner& owner : c_.owners) {
    const uint32_t every = owner.layout.refresh_tokens;
    if (every == 0 || !wants_prompt_end(owner)) continue;
    std::vector<Piece> due;  // decode_index counts the tokens before this one
    for (const Piece& piece : pieces)
      if (piece.decodes() && (piece.seq->decode_index + 1) % every == 0) due.push_back(piece);
    if (!due.empty()) send_candidates(owner, layer, due, KVASIR_MOMENT_ATTENDED);
  }
}

void StateStage::send_candidates(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces,
                                 uint32_t moment) {
  const uint32_t b = c_.geometry.block_size;
  std::vector<kvasir_update_item> items;
  for (uint32_t r = 0; r < pieces.size(); ++r) {
    LayerState& state = pieces[r].seq->layers[layer];
    if (!guard_piece(pieces[r], [&] { c_.store.make_all_resident(state); })) continue;
    const ForcedRange forced =
        forced_range(c_.cache, c_.forced_unit(), pieces[r].kv_len, pieces[r].seq->prompt_end);
    const bool all = owner.layout.flags & KVASIR_LAYOUT_PROMPT_END_ALL;
    const uint32_t begin = forced.sink_end / b;
    const uint32_t end = ((all ? pieces[r].kv_len : forced.window_begin) + b - 1) / b;
    owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], begin, end);
    for (uint32_t block = begin; block < end; ++block)
      if (state.blocks[block])
        items.push_back({r, block, 0, 0, state.leases[block].n_tokens, KVASIR_ITEM_PROMPT_END,
                         &state.leases[block], nullptr});
  }
  send(owner, layer, pieces, moment, items);
}

void StateStage::prefill_queries(uint32_t layer, const Piece& piece, const float* q,
                                 uint64_t n_queries) {
  if (c_.dense_layer[layer]) return;
  for (auto& selector : c_.pipeline.selectors) {
    const uint32_t wanted = selector->limits().prefill_last_queries;
    if (!selector->has_prefill() || wanted == 0) continue;
    Piece narrowed = piece;
    const uint32_t from = first_counted(*piece.seq, wanted);
    if (from >= piece.kv_len) continue;
    if (from > piece.first_pos()) {
      narrowed.q_begin += from - piece.first_pos();
      narrowed.n_q = piece.kv_len - from;
    }
    const SlabOwner* owner = c_.owner_of(selector.get());
    const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, layer, {narrowed}, selector->limits().unit,
                           owner);
    kvasir_sel_in in{};
    in.struct_size = sizeof(in);
    in.q = c_.store.bridge().to_reader(
        *selector, view_f32(q, n_queries, c_.geometry.n_q_heads, c_.geometry.head_dim), q_hold_);
    guarded(*selector, "prefill", layer, {piece}, "going on without it",
            [&] { return fault_of(selector->prefill(step.step(), in)); });
  }
}

StateStage::Watched StateStage::watched(const std::vector<Piece>& pieces, uint32_t mass_at,
                                        uint32_t last_queries) {
  Watched out;
  for (const Piece& piece : pieces) {
    if (piece.seq->fault) continue;
    const uint32_t at = piece.prefills() ? KVASIR_MASS_AT_PREFILL : KVASIR_MASS_AT_DECODE;
    const uint32_t from = piece.prefills() ? first_counted(*piece.seq, last_queries) : 0;
    if (!(mass_at & at) || from >= piece.kv_len) continue;
    out.pieces.push_back(piece);
    out.from_pos.push_back(from);
  }
  return out;
}

void StateStage::observe(uint32_t layer, const std::vector<Piece>& pieces, AttendStage& attention) {
  if (c_.dense_layer[layer]) return;
  for (auto& selector : c_.pipeline.selectors) {
    const SelectorLimits& limits = selector->limits();
    if (!selector->has_observe() || c_.aside(c_.index_of(*selector))) continue;
    const Watched seen = watched(pieces, limits.mass_at, limits.mass_last_queries);
    if (seen.pieces.empty()) continue;
    const auto mass =
        attention.mass(layer, seen.pieces, seen.from_pos, limits.mass_part == KVASIR_PART_WINDOW,
                       limits.mass_level != KVASIR_MASS_LISTS);
    observe_selector(*selector, layer, seen, mass);
  }
  for (SlabOwner& owner : c_.owners) {
    if (!owner.representative || c_.representative_failed) continue;
    const Watched seen = watched(pieces, owner.layout.mass_at, owner.layout.mass_last_queries);
    if (seen.pieces.empty()) continue;
    const auto mass = attention.mass(layer, seen.pieces, seen.from_pos,
                                     owner.layout.mass_part == KVASIR_PART_WINDOW, true);
    feed_mass(owner, layer, seen.pieces, mass);
  }
}

void StateStage::observe_selector(Selector& selector, uint32_t layer, const Watched& watched,
                                  const std::vector<std::vector<HeadMass>>& mass) {
  const std::vector<Piece>& pieces = watched.pieces;
  std::vector<uint32_t> n_queries;
  for (size_t r = 0; r < pieces.size(); ++r)
    n_queries.push_back(pieces[r].kv_len - std::max(watched.from_pos[r], pieces[r].first_pos()));
  const SelectorLimits& limits = selector.limits();
  const uint32_t group = c_.group_size(), kv_heads = c_.geometry.n_kv_heads;
  const uint32_t per = limits.mass_level == KVASIR_MASS_BLOCK ? c_.geometry.block_size : 1;
  std::vector<uint64_t> offsets{0};
  std::vector<uint32_t> index;
  std::vector<float> value;
  // One output row from kv heads [begin, end) and query head g of the group (group = all of them).
  const auto add_list = [&](const std::vector<HeadMass>& heads, uint32_t begin, uint32_t end,
                            uint32_t g) {
    std::vector<std::pair<uint32_t, float>> entries;
    for (uint32_t head = begin; head < end; ++head)
      for (size_t i = 0; i < heads[head].pos.size(); ++i) {
        float sum = 0.0f;
        for (uint32_t w = g == group ? 0 : g; w < (g == group ? group : g + 1); ++w)
          sum += heads[head].value[i * group + w];
        entries.emplace_back(heads[head].pos[i] / per, sum);
      }
    if (end - begin > 1)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    const size_t start = index.size();
    for (const auto& [unit, sum] : entries) {
      if (index.size() > start && index.back() == unit) {
        value.back() += sum;
      } else {
        index.push_back(unit);
        value.push_back(sum);
      }
    }
    offsets.push_back(index.size());
  };
  for (const auto& heads : mass) {
    if (limits.mass_reduce == KVASIR_MASS_SUM_ALL) {
      add_list(heads, 0, kv_heads, group);
    } else {
      for (uint32_t head = 0; head < kv_heads; ++head)
        for (uint32_t g = 0; g < (limits.mass_reduce == KVASIR_MASS_PER_Q_HEAD ? group : 1); ++g)
          add_list(heads, head, head + 1, limits.mass_reduce == KVASIR_MASS_PER_Q_HEAD ? g : group);
    }
  }
  kvasir_mass out{};
  out.struct_size = sizeof(out);
  out.unit = per > 1 ? KVASIR_UNIT_BLOCK : KVASIR_UNIT_TOKEN;
  out.reduce = limits.mass_reduce;
  out.n_queries = n_queries.data();
  out.n_lists = static_cast<uint32_t>(offsets.size() - 1);
  out.list_offsets = offsets.data();
  out.index = index.data();
  if (limits.mass_level != KVASIR_MASS_LISTS)
    out.value = c_.store.bridge().to_reader(
        selector, host_view(value.data(), KVASIR_DTYPE_F32, {value.size()}), mass_hold_);
  const SlabOwner* owner = c_.owner_of(&selector);
  if (owner && (limits.flags & KVASIR_LIMIT_OBSERVE_WRITES_SLAB))
    for (const Piece& piece : pieces)
      owner->slab.make_writable(
          piece.seq->layers[layer].slabs[c_.owner_index(owner)], 0,
          (piece.kv_len + c_.geometry.block_size - 1) / c_.geometry.block_size);
  StepBuilder step(c_, KVASIR_MOMENT_ATTENDED, layer, pieces, limits.unit, owner);
  step.without_queries();
  guarded(selector, "observe", layer, pieces, "going on without it",
          [&] { return fault_of(selector.observe(step.step(), out)); });
}

void StateStage::feed_mass(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces,
                           const std::vector<std::vector<HeadMass>>& mass) {
  const uint32_t b = c_.geometry.block_size, group = c_.group_size();
  const uint32_t q_heads = c_.geometry.n_q_heads;
  std::vector<kvasir_update_item> items;
  std::vector<float> flat;      // mass of all items
  std::vector<uint64_t> where;  // of each in it
  std::vector<std::vector<std::vector<float>>> buffers(pieces.size());
  for (uint32_t r = 0; r < pieces.size(); ++r) {
    LayerState& state = pieces[r].seq->layers[layer];
    buffers[r].resize(state.blocks.size());
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head)
      for (size_t i = 0; i < mass[r][head].pos.size(); ++i) {
        const uint32_t block = mass[r][head].pos[i] / b, t = mass[r][head].pos[i] % b;
        const uint32_t n_tokens = state.leases[block].n_tokens;
        auto& buffer = buffers[r][block];
        if (buffer.empty()) buffer.assign(uint64_t{q_heads} * n_tokens, 0.0f);
        for (uint32_t g = 0; g < group; ++g)
          buffer[(uint64_t{head} * group + g) * n_tokens + t] += mass[r][head].value[i * group + g];
      }
    if (!guard_piece(pieces[r], [&] { c_.store.make_all_resident(state); })) continue;
    for (uint32_t block = 0; block < buffers[r].size(); ++block) {
      if (buffers[r][block].empty()) continue;
      owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], block, block + 1);
      const uint32_t n_tokens = state.leases[block].n_tokens;
      items.push_back(
          {r, block, n_tokens, 0, n_tokens, KVASIR_ITEM_MASS, &state.leases[block], nullptr});
      where.push_back(flat.size());
      flat.insert(flat.end(), buffers[r][block].begin(), buffers[r][block].end());
    }
  }
  const Instance& plugin = owner.selector ? static_cast<const Instance&>(*owner.selector)
                                          : static_cast<const Instance&>(*owner.representative);
  const kvasir_view all = c_.store.bridge().to_reader(
      plugin, host_view(flat.data(), KVASIR_DTYPE_F32, {flat.size()}), mass_hold_);
  std::vector<kvasir_view> views;
  for (size_t i = 0; i < items.size(); ++i) {
    kvasir_view view = host_view(static_cast<float*>(all.data) + where[i], KVASIR_DTYPE_F32,
                                 {q_heads, items[i].n_tokens});
    view.mem_kind = all.mem_kind;
    view.device = all.device;
    views.push_back(view);
  }
  for (size_t i = 0; i < items.size(); ++i) items[i].mass = &views[i];
  send(owner, layer, pieces, KVASIR_MOMENT_ATTENDED, items);
}

void StateStage::evict(const std::vector<Piece>& pieces, uint32_t plan_at) {
  for (auto& selector : c_.pipeline.selectors) {
    const SelectorLimits& limits = selector->limits();
    if (!(limits.plan_at & plan_at) || !selector->has_evict_plan()) continue;
    for (uint32_t layer = 0; layer < c_.geometry.n_layers; ++layer) {
      if (c_.dense_layer[layer]) continue;
      std::vector<Piece> due;
      std::vector<Candidates> candidates;
      for (const Piece& piece : pieces) {
        if (piece.kv_len < limits.dense_below_tokens) continue;
        if (plan_at == KVASIR_PLAN_AT_STEP_END && limits.plan_every_tokens &&
            piece.seq->decode_index % limits.plan_every_tokens != 0)
          continue;
        due.push_back(piece);
        const ForcedRange forced =
            forced_range(c_.cache, c_.forced_unit(), piece.kv_len, piece.seq->prompt_end);
        candidates.push_back(live_candidates(piece.seq->layers[layer], limits.unit, forced,
                                             c_.geometry.block_size, c_.geometry.n_kv_heads));
        if (limits.scope == KVASIR_SCOPE_SEQUENCE) share_candidates(candidates.back());
      }
      if (due.empty()) continue;
      std::vector<const Candidates*> pointers;
      uint64_t most = 0;
      for (const Candidates& candidate : candidates) {
        pointers.push_back(&candidate);
        most += candidate.max_count();
      }
      if (most == 0) continue;
      guarded(*selector, "evict_plan", layer, due, "keeping everything",
              [&] { return plan(*selector, layer, due, pointers); });
    }
  }
}

// Asks for one layer's plan and carries it out; empty, or what is wrong with it.
std::string StateStage::plan(Selector& selector, uint32_t layer, const std::vector<Piece>& due,
                             const std::vector<const Candidates*>& candidates) {
  const SelectorLimits& limits = selector.limits();
  uint64_t capacity = 0;
  for (const Candidates* candidate : candidates)
    capacity += candidate->max_count() * c_.geometry.n_kv_heads;
  StepBuilder step(c_, KVASIR_MOMENT_STEP_END, layer, due, limits.unit, c_.owner_of(&selector),
                   candidates, limits.scope);
  step.without_queries();
  ListBuffer lists;
  lists.prepare(limits.unit, std::min<uint32_t>(limits.scope, KVASIR_SCOPE_KV_HEAD),
                limits.action ? limits.action : KVASIR_ACTION_EVICT,
                static_cast<uint32_t>(due.size()) * c_.geometry.n_kv_heads, capacity,
                c_.group_size());
  const kvasir_status status = selector.evict_plan(step.step(), lists.view);
  lists.reclaim();
  if (status == KVASIR_FALLBACK) return "";  // no plan
  if (status != KVASIR_OK) return fault_of(status);
  if (lists.view.unit != limits.unit) return "changed the unit of its rows";
  if (lists.view.action != KVASIR_ACTION_RESTRICT && lists.view.action != KVASIR_ACTION_EVICT)
    return "unknown action " + std::to_string(lists.view.action);
  CheckContext check;
  check.n_seqs = static_cast<uint32_t>(due.size());
  check.n_q_heads = c_.geometry.n_q_heads;
  check.n_kv_heads = c_.geometry.n_kv_heads;
  check.finest_scope = KVASIR_SCOPE_KV_HEAD;
  std::string fault = check_selection(lists.view, check, candidates);
  for (size_t r = 0; fault.empty() && r < due.size(); ++r) {
    uint32_t width = 0;
    bool fallback = false;
    auto heads = heads_of(lists.view, static_cast<uint32_t>(r), c_.geometry.n_q_heads,
                          c_.geometry.n_kv_heads, *candidates[r], &width, &fallback);
    if (!fallback)  // a storage's failure is not the selector's
      guard_piece(due[r], [&] { apply(due[r], layer, lists.view, heads, *candidates[r]); });
  }
  return fault;
}

void StateStage::apply(const Piece& piece, uint32_t layer, const kvasir_selection& plan,
                       const std::vector<HeadSelection>& heads, const Candidates& candidates) {
  LayerState& state = piece.seq->layers[layer];
  const uint32_t n_heads = c_.geometry.n_kv_heads;
  const bool drop = plan.flags & KVASIR_SELECTION_DROP;
  std::vector<std::vector<uint32_t>> kept(n_heads), lost(n_heads);
  bool all_kept = true;
  for (uint32_t head = 0; head < n_heads; ++head) {
    const HeadSelection& said = heads.size() == 1 ? heads[0] : heads[head];
    const auto sort_out = [&](uint32_t u) {
      const bool listed = said.all || std::binary_search(said.index.begin(), said.index.end(), u);
      ((said.all ? !drop : listed != drop) ? kept : lost)[head].push_back(u);
    };
    if (candidates.listed)
      for (const uint32_t u : candidates.heads[head].index) sort_out(u);
    else
      for (uint32_t u = candidates.begin; u < candidates.end; ++u) sort_out(u);
    all_kept = all_kept && lost[head].empty();
  }
  if (all_kept) return;
  state.selection.valid = false;
  if (plan.action == KVASIR_ACTION_RESTRICT) {
    state.restricted = std::move(kept);
    state.restricted_unit = plan.unit;
    state.restricted_end = candidates.end;
    return;
  }
  const uint32_t per = plan.unit == KVASIR_UNIT_BLOCK ? c_.geometry.block_size : 1;
  state.dead.resize(n_heads);
  state.live.resize(n_heads);
  std::set<uint32_t> touched;  // blocks
  for (uint32_t head = 0; head < n_heads; ++head) {
    auto& dead = state.dead[head];
    auto& live = state.live[head];
    for (auto t = static_cast<uint32_t>(dead.size()); t < candidates.end * per; ++t)
      live.push_back(t);
    dead.resize(std::max<size_t>(dead.size(), size_t{candidates.end} * per));
    for (const uint32_t u : lost[head]) {
      touched.insert(u * per / c_.geometry.block_size);
      for (uint32_t t = 0; t < per; ++t) dead[size_t{u} * per + t] = true;
    }
    std::erase_if(live, [&](uint32_t t) { return dead[t]; });
  }
  free_dead_blocks(state, touched);
  pack(piece, layer);
}

// Closes the gaps that eviction left below the window as soon as that frees memory. The border
// moves on with the window, so a plan that drops a token per step copies once per block of steps.
void StateStage::pack(const Piece& piece, uint32_t layer) {
  LayerState& state = piece.seq->layers[layer];
  const uint32_t b = c_.geometry.block_size, heads = c_.geometry.n_kv_heads;
  const uint32_t end =
      forced_range(c_.cache, KVASIR_UNIT_BLOCK, piece.kv_len, piece.seq->prompt_end).window_begin;
  if (end <= state.packed.end || !c_.store.can_pack()) return;
  std::vector<std::vector<uint32_t>> live(heads);
  uint64_t held = 0, needed = 0;  // blocks of one head
  for (uint32_t head = 0; head < heads; ++head) {
    for (const uint32_t token : state.live[head])
      if (token < end) live[head].push_back(token);
    for (auto token = static_cast<uint32_t>(state.dead[head].size()); token < end; ++token)
      live[head].push_back(token);
    needed += (live[head].size() + b - 1) / b;
    if (state.packed.end) held += state.packed.heads[head].blocks.size();
  }
  for (uint32_t block = state.packed.end / b; block < end / b; ++block)
    held += state.blocks[block] ? heads : 0;
  if (needed < held) c_.store.pack(state, layer, end, std::move(live));
}

void StateStage::free_dead_blocks(LayerState& state, const std::set<uint32_t>& among) {
  const size_t b = c_.geometry.block_size;
  for (const uint32_t block : among) {
    if (!state.blocks[block]) continue;
    bool dead = true;
    for (const auto& head : state.dead)
      for (size_t t = block * b; t < (block + 1) * b && dead; ++t)
        dead = t < head.size() && head[t];
    if (!dead) continue;
    state.blocks[block].reset();
    state.leases[block] = {};
  }
}

void StateStage::refeed(SlabOwner& owner, Sequence& seq, uint32_t from_block) {
  const uint32_t b = c_.geometry.block_size;
  for (uint32_t layer = 0; layer < c_.geometry.n_layers; ++layer) {
    if (c_.dense_layer[layer]) continue;
    LayerState& state = seq.layers[layer];
    c_.store.make_all_resident(state);
    const auto n_blocks = static_cast<uint32_t>(state.blocks.size());
    owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], from_block, n_blocks);
    std::vector<kvasir_update_item> items;
    for (uint32_t block = from_block; block < n_blocks; ++block) {
      const uint32_t n_tokens = state.leases[block].n_tokens;
      if (!state.blocks[block] ||
          (n_tokens < b && (owner.layout.flags & KVASIR_LAYOUT_SEALED_ONLY)))
        continue;
      items.push_back({0, block, 0, n_tokens, n_tokens,
                       KVASIR_ITEM_NEW | (n_tokens == b ? KVASIR_ITEM_SEALED : 0u),
                       &state.leases[block], nullptr});
    }
    Piece piece;
    piece.seq = &seq;
    piece.kv_len = seq.kv_len;
    send(owner, layer, {piece}, KVASIR_MOMENT_BETWEEN_STEPS, items);
    c_.store.release_step(state);
  }
}

}  // namespace kvasir
