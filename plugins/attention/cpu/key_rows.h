// From items and leases of the ABI to the kernels' descriptions of K and V rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "plugins/shared/attention_geometry.h"

namespace kvasir::attention {

// The keys of some items of one range, as the kernels take them. Reused from task to task.
class KeyRows {
 public:
  // Items [begin, end) of the part for one kv head. With `q_pos`, only the keys that a query at
  // that position may see; without, all of them, with their positions.
  void build(const Geometry& geometry, const kvasir_attn_part& part, uint32_t kv_head,
             uint64_t begin, uint64_t end, std::optional<uint32_t> q_pos);

  // Asks for the first keys, unless they are single tokens: what attends to them asks for the
  // others, as it goes.
  void ask_for_first() const;

  // Neighbouring rows of equal element types: one kernel call each. Nearly always one.
  struct Run {
    kernels::ElementType k_type, v_type;
    size_t first, count;
  };
  std::span<const Run> runs() const { return runs_; }
  std::span<const kernels::KvRows> rows(const Run& run) const {
    return std::span(rows_).subspan(run.first, run.count);
  }

 private:
  struct Visible;  // the positions that may be seen
  void add_block(const Geometry& geometry, const kvasir_attn_part& part, uint32_t kv_head,
                 uint64_t item, const Visible& visible);
  uint64_t add_tokens(const Geometry& geometry, const kvasir_attn_part& part, uint32_t kv_head,
                      uint64_t begin, uint64_t end, const Visible& visible);
  void keep_tokens(kernels::KvRows& rows, const kvasir_lease& lease, const Visible& visible);
  void add(const Geometry& geometry, const kvasir_lease& lease, const kernels::KvRows& rows);

  std::vector<kernels::KvRows> rows_;
  std::vector<Run> runs_;
  std::vector<uint32_t> tokens_;
  std::vector<float> weights_;
};

}  // namespace kvasir::attention
