// Cutting ranges into tasks.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cpu/tasks.h"

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/view.h>

#include <algorithm>

#include "kernels/attention_decode.h"

namespace kvasir::attention {
namespace {

// Keys of a slice. Of a decoded token: fewer are not worth a task of their own. Of a prompt:
// queries are packed once per slice, for 8,192 keys at a hundredth of the cost.
constexpr uint64_t kDecodeSliceKeys = 2048, kPrefillSliceKeys = 8192;
constexpr uint32_t kTaskQueryHeads =
    512;  // queries times query heads of a prefill task: 64 KiB of S, 0.5 MiB of o
constexpr uint64_t kMostSpread = uint64_t{1} << 24;  // floats of a range's results by slice: 64 MiB

constexpr size_t kGroupsPerWorker = 4;  // fewer would balance badly

uint64_t floats_of(const Geometry& g, uint32_t n_q) {
  return uint64_t{n_q} * g.group_size() * (uint64_t{g.v_dim} + 1);
}

// Whether b is cut as a is, for the next kv head.
bool continues(const kvasir_attn_range& a, const kvasir_attn_range& b) {
  return b.kv_head == a.kv_head + 1 && b.q_begin == a.q_begin && a.n_q == 1 && b.n_q == 1 &&
         !((a.flags | b.flags) & KVASIR_ATTN_RANGE_PREFILL) &&
         b.item_end - b.item_begin == a.item_end - a.item_begin;
}

// Of tasks of one part with as many items.
bool have_same_items(const Task& a, const Task& b) {
  const uint32_t* items = a.part->items;
  return a.item_begin == b.item_begin ||
         (items && std::equal(items + a.item_begin, items + a.item_end, items + b.item_begin));
}

}  // namespace

void check_part_on_host(const Geometry& g, const kvasir_attn_part& part) {
  check_part(g, part);
  if (part.q.mem_kind > KVASIR_MEM_PINNED) sdk::fail_invalid("q must lie in host memory");
  if (!sdk::positions(part.q_pos, "q_pos") && part.q.shape[0] != 0) {
    sdk::fail_invalid("a part without q_pos");
  }
}

TaskPlanner::TaskPlanner(const Geometry& geometry, uint32_t n_workers, bool heads_apart)
    : geometry_(geometry),
      queries_per_task_(std::max(16u, kTaskQueryHeads / geometry.group_size())),
      n_workers_(n_workers),
      heads_apart_(heads_apart) {}

// The first range that names a (query, kv head) writes its output, later ones are merged into it.
// True when the range may write all of its pairs itself.
bool TaskPlanner::claim(const kvasir_attn_range& range, TaskList& out) {
  const size_t heads = geometry_.n_kv_heads;
  const size_t end = size_t{range.q_begin} + range.n_q;
  if (claimed_.size() < end * heads) claimed_.resize(end * heads, false);
  uint32_t n_free = 0;
  for (size_t q = range.q_begin; q < end; ++q)
    n_free += claimed_[q * heads + range.kv_head] ? 0 : 1;
  for (size_t q = range.q_begin; q < end; ++q) {
    if (n_free != range.n_q && !claimed_[q * heads + range.kv_head]) {
      out.to_clear.push_back({range.kv_head, static_cast<uint32_t>(q), 1});
    }
    claimed_[q * heads + range.kv_head] = true;
  }
  return n_free == range.n_q;
}

void TaskPlanner::add_range(const kvasir_attn_part& part, const kvasir_attn_range& range,
                            TaskList& out) {
  check_range(geometry_, part, range);
  const bool direct = claim(range, out);
  const bool prefill = range.flags & KVASIR_ATTN_RANGE_PREFILL;
  const uint64_t per_item = geometry_.keys_per_item(part);
  const uint64_t slice_items =
      std::max<uint64_t>(1, (prefill ? kPrefillSliceKeys : kDecodeSliceKeys) / per_item);
  const uint64_t n_items = range.item_end - range.item_begin;
  const uint64_t n_slices = std::max<uint64_t>(1, (n_items + slice_items - 1) / slice_items);
  const uint32_t q_step = prefill ? queries_per_task_ : 1;
  const uint32_t n_tiles = (range.n_q + q_step - 1) / q_step;
  // A task per slice where there would be too few tasks; a token's are cheap to merge.
  const bool few = !prefill || uint64_t{n_tiles} * geometry_.n_kv_heads < uint64_t{2} * n_workers_;
  const bool spread = n_workers_ > 1 && n_slices > 1 && few &&
                      n_slices * floats_of(geometry_, range.n_q) <= kMostSpread;
  Task tile{};
  tile.part = &part;
  tile.kv_head = range.kv_head;
  tile.prefill = prefill;
  tile.item_begin = range.item_begin;
  tile.item_end = range.item_end;
  tile.slice_items = slice_items;
  tile.n_parts_of_range = n_tiles * (spread ? n_slices : 1);
  for (uint32_t q = 0; q < range.n_q; q += q_step) {
    tile.q_begin = range.q_begin + q;
    tile.n_q = std::min(q_step, range.n_q - q);
    tile.cost = n_items * per_item * tile.n_q;
    add_tile(tile, direct, spread, out);
    tile.part_of_range += spread ? n_slices : 1;
  }
}

// The slices are merged into the first one's result, and that into the outputs.
void TaskPlanner::add_tile(const Task& tile, bool direct, bool spread, TaskList& out) {
  const auto take_side = [&] {
    const uint64_t at = out.side_floats;
    out.side_floats += floats_of(geometry_, tile.n_q);
    return at;
  };
  const uint64_t first = direct ? kDirect : take_side();
  Task task = tile;
  task.side = first;
  if (spread) {
    const uint64_t n_items = tile.item_end - tile.item_begin;
    task.cost = tile.cost * tile.slice_items / n_items;
    for (uint64_t at = tile.item_begin; at < tile.item_end; at += tile.slice_items) {
      task.item_begin = at;
      task.item_end = std::min(at + tile.slice_items, tile.item_end);
      if (at != tile.item_begin) {
        task.side = take_side();
        out.merges.push_back({tile.kv_head, tile.q_begin, tile.n_q, task.side, first});
      }
      out.tasks.push_back(task);
      ++task.part_of_range;
    }
  } else {
    out.tasks.push_back(task);
  }
  if (!direct) out.merges.push_back({tile.kv_head, tile.q_begin, tile.n_q, first, kDirect});
}

// A worker takes several heads where that leaves enough for the others to do.
void TaskPlanner::group_heads(TaskList& out) const {
  const size_t enough = n_workers_ == 1 ? 1 : kGroupsPerWorker * n_workers_;
  const auto most = static_cast<uint32_t>(
      heads_apart_ ? 1
                   : std::clamp<size_t>(out.tasks.size() / enough, 1, kernels::kMostDecodeHeads));
  for (const Alike& ranges : alike_) {
    const auto stride = static_cast<uint32_t>(ranges.n_tasks);
    for (size_t task = 0; task < ranges.n_tasks; ++task)
      for (uint32_t head = 0; head < ranges.n_ranges; ++head) {
        const size_t at = ranges.first_task + task + size_t{head} * stride;
        const bool joins = head != 0 && out.groups.back().n < most &&
                           have_same_items(out.tasks[at - stride], out.tasks[at]);
        if (joins)
          ++out.groups.back().n;
        else
          out.groups.push_back({at, 1, stride});
      }
  }
  const auto cost = [&](const TaskList::Group& group) {
    return out.tasks[group.first].cost * group.n;
  };
  std::stable_sort(out.groups.begin(), out.groups.end(),
                   [&](const auto& a, const auto& b) { return cost(a) > cost(b); });
}

void TaskPlanner::plan(const kvasir_attn_in& in, TaskList& out) {
  out.tasks.clear();
  out.groups.clear();
  out.merges.clear();
  out.to_clear.clear();
  out.side_floats = 0;
  claimed_.clear();
  alike_.clear();
  for (const kvasir_attn_part& part : parts_of(in)) {
    check_part_on_host(geometry_, part);
    const kvasir_attn_range* before = nullptr;
    for (const kvasir_attn_range& range : ranges_of(part)) {
      const size_t first = out.tasks.size();
      add_range(part, range, out);
      if (before && continues(*before, range))
        ++alike_.back().n_ranges;
      else
        alike_.push_back({first, 1, out.tasks.size() - first});
      before = &range;
    }
  }
  group_heads(out);
}

}  // namespace kvasir::attention
