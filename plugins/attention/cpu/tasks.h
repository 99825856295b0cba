// Shares the ranges of a call out into tasks whose results do not depend on who runs them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/attention/cpu/key_rows.h"

namespace kvasir::attention {

inline constexpr uint64_t kDirect = UINT64_MAX;

// Some queries of one range against some of its items, slice by slice: the partial results of the
// slices are merged in their order, so it does not matter which of them share a task.
struct Task {
  const kvasir_attn_part* part;
  uint32_t kv_head;
  uint32_t q_begin;  // query of the q view and of the outputs
  uint32_t n_q;
  bool prefill;  // the kernel: one for prompts, one for single tokens
  uint64_t item_begin;
  uint64_t item_end;
  uint64_t slice_items;
  // Where the result goes: the call's outputs, or [n_q][group_size] (o, then lse) at this offset of
  // the side buffer.
  uint64_t side;
  uint64_t cost;                             // keys times queries
  uint64_t part_of_range, n_parts_of_range;  // which task it is of its range's
};

// A result of the side buffer goes into another, or into the call's outputs.
struct Merge {
  uint32_t kv_head, q_begin, n_q;
  uint64_t from, into;  // offsets of the side buffer; kDirect: the outputs
};

struct TaskList {
  std::vector<Task> tasks;
  // What one worker does: tasks first, first + stride … of equal items, one per kv head.
  struct Group {
    size_t first;
    uint32_t n, stride;
  };
  std::vector<Group> groups;  // longest first
  std::vector<Merge> merges;  // to be done in this order
  uint64_t side_floats = 0;   // size of the side buffer
  struct Pairs {
    uint32_t kv_head, q_begin, n_q;
  };
  std::vector<Pairs> to_clear;  // outputs no task writes directly: start as the empty set
};

// Tasks of run(). What is computed does not depend on the number of workers, on the rest of the
// batch, or on the other queries of a range: slices begin at fixed places of the range's items, a
// slice of which a query sees nothing leaves its result as it was, and the order of merging is that
// of the list. Only who computes what depends on them.
class TaskPlanner {
 public:
  // heads_apart: the heads of a block do not lie behind each other.
  TaskPlanner(const Geometry& geometry, uint32_t n_workers, bool heads_apart);
  void plan(const kvasir_attn_in& in, TaskList& out);

  // Queries of a prompt per task: more share one conversion of K and V, fewer balance better.
  uint32_t queries_per_task() const { return queries_per_task_; }

 private:
  void add_range(const kvasir_attn_part& part, const kvasir_attn_range& range, TaskList& out);
  void add_tile(const Task& tile, bool direct, bool spread, TaskList& out);
  void group_heads(TaskList& out) const;
  bool claim(const kvasir_attn_range& range, TaskList& out);

  const Geometry& geometry_;
  uint32_t queries_per_task_, n_workers_;
  bool heads_apart_;
  std::vector<bool> claimed_;  // [query][kv_head]: some earlier range writes it
  // Ranges of decoded tokens whose kv heads follow each other and have as many items, and the tasks
  // of each.
  struct Alike {
    size_t first_task;
    uint32_t n_ranges;
    size_t n_tasks;
  };
  std::vector<Alike> alike_;
};

// check_part() of plugins/shared, and that q and q_pos are there and in host memory.
void check_part_on_host(const Geometry& geometry, const kvasir_attn_part& part);
// Of a part that was checked.
inline const uint32_t* positions_of(const kvasir_attn_part& part) {
  return static_cast<const uint32_t*>(part.q_pos.data);
}

}  // namespace kvasir::attention
