// Shares the rows of a call out into tasks whose results do not depend on who runs them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/attention/cpu/key_rows.h"
#include "plugins/sdk/strided.h"

namespace kvasir::attention {

inline constexpr uint64_t kDirect = UINT64_MAX;

// Some queries of one row against some of its items.
struct Task {
  const kvasir_attn_part* part;
  uint32_t kv_head;
  uint32_t q_begin;  // row of the q view and of the outputs
  uint32_t n_q;
  uint64_t item_begin;
  uint64_t item_end;
  // Where the partial result goes: the call's outputs, or [n_q][group_size] (o, then lse) at this
  // offset of the side buffer, to be merged into the outputs afterwards.
  uint64_t side;
  uint64_t cost;                         // keys times queries
  uint64_t part_of_row, n_parts_of_row;  // which task it is of its row's
};

struct TaskList {
  std::vector<Task> tasks;     // longest first
  std::vector<Task> to_merge;  // those with a side result, in the order of merging
  uint64_t side_floats = 0;    // size of the side buffer
  struct Pairs {
    uint32_t kv_head, q_begin, n_q;
  };
  std::vector<Pairs> to_clear;  // outputs no task writes directly: start as the empty set
};

// Tasks of run(). Cuts depend on the row itself and on n_workers, never on the rest of the batch:
// the result of a sequence is the same alone and in company.
class TaskPlanner {
 public:
  TaskPlanner(const Geometry& geometry, uint32_t n_workers);
  void plan(const kvasir_attn_in& in, TaskList& out);

  // Queries of a task: more share one conversion of K and V, fewer balance better.
  uint32_t queries_per_task() const { return queries_per_task_; }
  // Whether so few queries go to the decode kernel, one by one.
  bool decodes(uint32_t n_q) const { return n_q == 1 || n_q * geometry_.group_size() <= 16; }

 private:
  void add_row(const kvasir_attn_part& part, const kvasir_attn_row& row, TaskList& out);
  bool claim(const kvasir_attn_row& row, TaskList& out);

  const Geometry& geometry_;
  uint32_t queries_per_task_;
  uint64_t max_slices_;
  std::vector<bool> claimed_;  // [query][kv_head]: some earlier row writes it
};

// The parts of a call and the rows of a part, at the distances the host says.
inline sdk::Strided<const kvasir_attn_part> parts_of(const kvasir_attn_in& in) {
  return {in.parts, in.n_parts, in.part_size};
}
inline sdk::Strided<const kvasir_attn_row> rows_of(const kvasir_attn_part& part) {
  return {part.rows, part.n_rows, part.row_size};
}
// Of a part that the planner has checked.
inline const uint32_t* positions_of(const kvasir_attn_part& part) {
  return static_cast<const uint32_t*>(part.q_pos.data);
}

}  // namespace kvasir::attention
