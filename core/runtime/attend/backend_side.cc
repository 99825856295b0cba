// Calls of one attention backend; see backend_side.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/backend_side.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>

#include "core/runtime/attend/lost_keys.h"
#include "core/runtime/step/check_clock.h"
#include "core/runtime/step/finite.h"
#include "core/runtime/step/step_builder.h"
#include "kernels/attention_state.h"

namespace kvasir {
namespace {

// One entry per sequence, as plugins see them.
std::vector<Piece> whole_pieces(const std::vector<Piece>& pieces) {
  std::vector<Piece> whole;
  for (const Piece& piece : pieces) {
    if (whole.empty() || whole.back().seq != piece.seq ||
        whole.back().q_begin + whole.back().n_q != piece.q_begin) {
      whole.push_back(piece);
      continue;
    }
    whole.back().n_q += piece.n_q;
    whole.back().kv_len = piece.kv_len;
  }
  return whole;
}

bool belongs(const Part& part, const std::vector<Piece>& pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return piece.place == part.place; });
}

}  // namespace

BackendSide::BackendSide(const RunContext& context, Attention& backend, MemoryBridge& bridge,
                         bool is_window)
    : c_(context),
      backend_(backend),
      bridge_(bridge),
      is_window_(is_window),
      reference_(context, backend) {}

// Parts share most of their queries.
void BackendSide::hand_over_queries(std::deque<Part>& parts) {
  if (backend_.reads(KVASIR_MEM_HOST)) return;
  std::map<const void*, kvasir_view> there;
  for (Part& part : parts) {
    if (!takes(part)) continue;
    for (kvasir_view* view : {&part.abi.q, &part.abi.q_pos}) {
      const auto [at, is_new] = there.try_emplace(view->data);
      if (is_new) {
        if (queries_.size() < there.size()) queries_.emplace_back();
        at->second = bridge_.to_reader(backend_, *view, queries_[there.size() - 1]);
      }
      *view = at->second;
    }
  }
}

bool BackendSide::has_parts(const Pass& pass, const std::deque<Part>& parts) const {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const Part& part) { return takes(part) && belongs(part, pass.pieces); });
}

kvasir_view BackendSide::o_of(const AttentionRows& rows, uint64_t n_queries) const {
  return bridge_.view(rows.on_device, rows.o,
                      {n_queries, c_.geometry.n_q_heads, c_.geometry.v_dim});
}

kvasir_view BackendSide::lse_of(const AttentionRows& rows, uint64_t n_queries) const {
  return bridge_.view(rows.on_device, rows.lse, {n_queries, c_.geometry.n_q_heads});
}

void BackendSide::run(const Pass& pass, const std::deque<Part>& parts, const AttentionRows& to,
                      const kvasir_view* lists) {
  keys_skipped_ = 0;
  abi_parts_.clear();
  lists_.clear();
  owners_.clear();
  for (const Part& part : parts) {
    if (!takes(part) || !belongs(part, pass.pieces)) continue;
    for (const Part::ListThere& list : part.there)
      lists_.push_back(
          {static_cast<uint32_t>(abi_parts_.size()), 0, list.item_begin, list.n, list.first});
    owners_.push_back(part.owner);
    abi_parts_.push_back(part.abi);
  }
  const kvasir_attn_in in{sizeof(kvasir_attn_in), mass_follows(c_, pass),
                          static_cast<uint32_t>(abi_parts_.size()), sizeof(kvasir_attn_part),
                          abi_parts_.data()};
  const kvasir_view o = o_of(to, pass.in.n), lse = lse_of(to, pass.in.n);
  const kvasir_view o_there = bridge_.to_writer(backend_, o, o_hold_);
  const kvasir_view lse_there = bridge_.to_writer(backend_, lse, lse_hold_);
  kvasir_attn_out out{sizeof(kvasir_attn_out), 0, o_there, lse_there, 0};
  const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, pass.with(whole_pieces(pass.pieces)),
                         KVASIR_UNIT_BLOCK, nullptr);
  call(step.step(), in, lists, out);
  bring_back(pass.pieces, o_there, o);
  bring_back(pass.pieces, lse_there, lse);
  keys_skipped_ = out.keys_skipped;
  check_skipped(pass.layer);
  reference_.compare(step.step(), in, pass, to.o, to.lse);
}

void BackendSide::call(const kvasir_step& step, const kvasir_attn_in& in, const kvasir_view* lists,
                       kvasir_attn_out& out) {
  if (!lists) return backend_.run(step, in, out);
  const kvasir_attn_lists there{sizeof(kvasir_attn_lists),
                                sizeof(kvasir_attn_list),
                                lists_.data(),
                                lists_.size(),
                                owners_.data(),
                                sizeof(kvasir_attn_owner),
                                0,
                                *lists};
  backend_.run_with_lists(step, in, there, out);
}

void BackendSide::check_skipped(uint32_t layer) const {
  if (keys_skipped_ == 0) return;
  uint64_t keys = 0;  // at most
  for (const kvasir_attn_part& part : abi_parts_)
    for (uint32_t r = 0; r < part.n_ranges; ++r)
      keys += (part.ranges[r].item_end - part.ranges[r].item_begin) *
              (part.unit == KVASIR_UNIT_BLOCK ? c_.geometry.block_size : 1);
  if (keys_skipped_ > keys)
    throw PluginError(backend_.id(), "run", KVASIR_ERR_INTERNAL,
                      "layer " + std::to_string(layer) + ": it says that it skipped " +
                          std::to_string(keys_skipped_) + " of " + std::to_string(keys) +
                          " keys (a defect of the plugin)");
}

void BackendSide::refuse(const Pass& pass, const std::deque<Part>& parts, const char* result,
                         uint64_t query) const {
  const std::string layer = "layer " + std::to_string(pass.layer) + ": ";
  for (const Part& part : parts) {
    if (!takes(part) || !belongs(part, pass.pieces)) continue;
    const Storage& storage = part.in_window ? *c_.pipeline.window_storage : *c_.pipeline.storage;
    const std::string lost = find_lost_key(c_, part);
    if (!lost.empty())
      throw PluginError(storage.id(), "acquire", KVASIR_ERR_IO,
                        layer + lost +
                            " is not finite, and was when it was written: its type overflowed, or "
                            "the storage lost it");
  }
  throw PluginError(backend_.id(), "run", KVASIR_ERR_INTERNAL,
                    layer + result + " of query " + std::to_string(query) +
                        " is not finite, or was not written (a defect of the plugin)");
}

const char* BackendSide::not_finite(uint64_t query, uint64_t head) const {
  const float lse = lse_[query * c_.geometry.n_q_heads + head];
  if (lse == kernels::kEmptyLse) return "";  // no key here: nothing to merge, and o may be anything
  if (!std::isfinite(lse)) return "lse";
  const uint64_t v_dim = c_.geometry.v_dim;
  const float* o = o_.data() + (query * c_.geometry.n_q_heads + head) * v_dim;
  return all_finite(o, v_dim) ? "" : "output";
}

void BackendSide::bring_back(const std::vector<Piece>& pieces, const kvasir_view& written,
                             const kvasir_view& into) {
  for (const QueryRun& run : runs_of_queries(pieces))
    bridge_.from_writer(written, into, run.begin, run.end);
}

void BackendSide::run_alone(const Pass& pass, const std::deque<Part>& parts) {
  keys_skipped_ = 0;
  if (!has_parts(pass, parts)) return;
  const uint64_t heads = c_.geometry.n_q_heads;
  o_.assign(pass.in.n * heads * c_.geometry.v_dim, kUnwritten);
  lse_.assign(pass.in.n * heads, kUnwritten);
  run(pass, parts, {o_.data(), lse_.data()});
}

void BackendSide::merge(const Pass& pass, const std::deque<Part>& parts, float* o, float* lse) {
  const uint64_t heads = c_.geometry.n_q_heads, v_dim = c_.geometry.v_dim;
  const uint32_t group = c_.group_size();
  for (const Part& part : parts) {
    if (!takes(part) || !belongs(part, pass.pieces)) continue;
    for (const kvasir_attn_range& range : part.ranges) {
      const uint64_t first_head = uint64_t{range.kv_head} * group;
      for (uint64_t query = range.q_begin; query < uint64_t{range.q_begin} + range.n_q; ++query)
        for (uint64_t head = first_head; head < first_head + group; ++head) {
          const uint64_t at = query * heads + head;
          if (const char* result = not_finite(query, head); *result)
            refuse(pass, parts, result, query);
          kernels::merge_attention(o + at * v_dim, lse + at, o_.data() + at * v_dim, lse_[at],
                                   v_dim);
          lse_[at] = kernels::kEmptyLse;  // once, where several parts name the pair
        }
    }
  }
}

// Of the ranges that have queries: what else the backend leaves as it was.
void BackendSide::check_mass(uint32_t layer, const MassCall::Share& share) const {
  const uint64_t group = c_.group_size();
  size_t at = 0;
  for (const kvasir_attn_part& part : share.parts)
    for (uint32_t r = 0; r < part.n_ranges; ++r, ++at) {
      if (part.ranges[r].n_q == 0) continue;
      const float* begin = share.value + share.offsets[at] * group;
      const float* end = share.value + share.offsets[at + 1] * group;
      if (all_finite(begin, static_cast<size_t>(end - begin)) &&
          std::none_of(begin, end, [](float value) { return value < 0; }))
        continue;
      throw PluginError(
          backend_.id(), "mass", KVASIR_ERR_INTERNAL,
          "layer " + std::to_string(layer) + ": mass of kv head " +
              std::to_string(part.ranges[r].kv_head) +
              " is negative, not finite, or was not written (a defect of the plugin)");
    }
}

void BackendSide::ask_mass(const Pass& pass, const kvasir_view& lse, MassCall& call) {
  const MassCall::Share share = call.share(is_window_);
  if (share.parts.empty() && c_.pipeline.is_hybrid()) return;
  const kvasir_attn_in in{sizeof(kvasir_attn_in), 0, static_cast<uint32_t>(share.parts.size()),
                          sizeof(kvasir_attn_part), share.parts.data()};
  const uint64_t keys = share.offsets.back();
  const uint32_t group = c_.group_size();
  std::fill_n(share.value, keys * group, kUnwritten);
  const kvasir_view into = host_view(share.value, KVASIR_DTYPE_F32, {keys, group});
  const kvasir_view there = bridge_.to_writer(backend_, into, mass_hold_);
  const kvasir_attn_mass out{sizeof(kvasir_attn_mass), group, share.offsets.data(),
                             bridge_.to_reader(backend_, lse, mass_lse_hold_), there};
  const StepBuilder step(c_, KVASIR_MOMENT_ATTENDED, pass, KVASIR_UNIT_BLOCK, nullptr);
  backend_.mass(step.step(), in, out);
  bridge_.from_writer(there, into, 0, keys);
  const CheckClock clock(c_.counters.of(pass.pieces[0].prefills()).check_nanos);
  check_mass(pass.layer, share);
}

}  // namespace kvasir
