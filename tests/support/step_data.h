// What step calls take and give back, for tests that make them: a small geometry, a step of one
// sequence, selections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <kvasir/kvasir.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::test {

// begin up to end, none where it does not lie behind.
inline std::vector<uint32_t> range(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> out(end > begin ? end - begin : 0);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

inline kvasir_geometry small_geometry() {
  kvasir_geometry g{};
  g.struct_size = sizeof g;
  g.n_layers = 2;
  g.n_q_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = g.v_dim = 8;
  g.block_size = 16;
  g.max_context = 4096;
  g.max_sequences = 4;
  g.max_queries = 64;
  g.format_size = sizeof(kvasir_kv_format);
  g.softmax_scale = 1.0f;
  return g;
}

// A moment of a step and what its sequences do.
struct When {
  uint32_t moment, phase;
};
inline constexpr When kPromptAppended{KVASIR_MOMENT_APPENDED, KVASIR_PHASE_PREFILL};
inline constexpr When kPromptAttended{KVASIR_MOMENT_ATTENDED, KVASIR_PHASE_PREFILL};
inline constexpr When kPromptEnd{KVASIR_MOMENT_PROMPT_END, KVASIR_PHASE_PREFILL};
inline constexpr When kPromptStepEnd{KVASIR_MOMENT_STEP_END, KVASIR_PHASE_PREFILL};
inline constexpr When kDecodeAppended{KVASIR_MOMENT_APPENDED, KVASIR_PHASE_DECODE};
inline constexpr When kDecodeAttended{KVASIR_MOMENT_ATTENDED, KVASIR_PHASE_DECODE};
inline constexpr When kDecodeStepEnd{KVASIR_MOMENT_STEP_END, KVASIR_PHASE_DECODE};

// A step of one sequence (id 1) in layer 0, whose prompt has just been read.
struct OneSeqStep {
  kvasir_step_seq seq{};
  kvasir_step step{};

  OneSeqStep(When when, uint32_t kv_len, uint32_t unit_begin, uint32_t unit_end) {
    seq.id = 1;
    seq.n_q = 1;
    seq.kv_len = seq.prompt_end = kv_len;
    seq.unit_begin = unit_begin;
    seq.unit_end = unit_end;
    step.struct_size = sizeof step;
    seq.phase = when.phase;
    step.moment = when.moment;
    step.n_seqs = 1;
    step.seq_size = sizeof seq;
    step.seqs = &seq;
  }
  OneSeqStep(const OneSeqStep&) = delete;
};

// Buffers of a selection, filled with a pattern so that stray writes are seen; those behind the
// capacity are found when it goes.
class SelectionBuffer {
 public:
  static constexpr uint32_t kUnwritten = 0xbeef;
  std::vector<uint64_t> list_offsets;
  std::vector<uint32_t> list_flags, index;
  std::vector<float> log_weight;
  kvasir_selection selection{};

  SelectionBuffer(uint32_t unit, uint32_t scope, uint32_t n_lists, uint64_t capacity)
      : list_offsets(n_lists + 1, 0xdead),
        list_flags(n_lists, 0),
        index(capacity + kGuards, kUnwritten),
        log_weight(capacity, 7.0f) {
    selection.struct_size = sizeof selection;
    selection.unit = unit;
    selection.scope = scope;
    selection.capacity = capacity;
    selection.list_offsets = list_offsets.data();
    selection.list_flags = list_flags.data();
    selection.index = index.data();
    selection.log_weight = log_weight.data();
  }
  // Lists that are there already, as step.candidates has them.
  SelectionBuffer(uint32_t unit, uint32_t scope, const std::vector<std::vector<uint32_t>>& lists)
      : SelectionBuffer(unit, scope, static_cast<uint32_t>(lists.size()), size_of(lists)) {
    uint64_t n = 0;
    list_offsets[0] = 0;
    for (const auto& list : lists) {
      for (const uint32_t unit_index : list) index[n++] = unit_index;
      list_offsets[++selection.n_lists] = n;
    }
  }
  SelectionBuffer(SelectionBuffer&&) = default;
  SelectionBuffer& operator=(SelectionBuffer&&) = default;
  ~SelectionBuffer() {
    for (uint64_t i = selection.capacity; i < index.size(); ++i) CHECK(index[i] == kUnwritten);
  }

  std::vector<uint32_t> list(uint32_t i) const { return part(index, i); }
  std::vector<float> weights(uint32_t i) const { return part(log_weight, i); }

 private:
  static constexpr uint64_t kGuards = 4;
  static uint64_t size_of(const std::vector<std::vector<uint32_t>>& lists) {
    uint64_t n = 0;
    for (const auto& one : lists) n += one.size();
    return n;
  }
  template <class T>
  std::vector<T> part(const std::vector<T>& of, uint32_t i) const {
    return {of.begin() + static_cast<long>(list_offsets[i]),
            of.begin() + static_cast<long>(list_offsets[i + 1])};
  }
};

// What the header promises of a result: monotone offsets, lists ascending, unique, inside
// [begin, end), weights below infinity, as many lists as the scope asks for. Empty, or the first
// violation.
inline std::string violation(const kvasir_selection& s, uint32_t n_lists, uint32_t begin,
                             uint32_t end) {
  if (s.n_lists != n_lists) return "lists";
  if (s.list_offsets[0] != 0) return "offsets";
  for (uint32_t r = 0; r < n_lists; ++r) {
    if (s.list_offsets[r + 1] < s.list_offsets[r]) return "offsets";
    if (s.list_offsets[r + 1] > s.capacity) return "capacity";
    if (s.list_flags[r] > KVASIR_LIST_FALLBACK) return "flag";
    if (s.list_flags[r] != KVASIR_LIST_LISTED && s.list_offsets[r + 1] != s.list_offsets[r])
      return "flag";
    for (uint64_t i = s.list_offsets[r]; i < s.list_offsets[r + 1]; ++i) {
      if (s.index[i] < begin || s.index[i] >= end) return "range";
      if (i > s.list_offsets[r] && s.index[i] == s.index[i - 1]) return "duplicate";
      if (i > s.list_offsets[r] && s.index[i] < s.index[i - 1]) return "order";
      if (s.weight_width == 1 && !(s.log_weight[i] < INFINITY)) return "weight";
    }
  }
  return "";
}

}  // namespace kvasir::test
