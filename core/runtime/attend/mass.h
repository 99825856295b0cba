// Attention mass: what a backend is asked, and its answer by position.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/runtime/attend/part.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Attention mass of one sequence and layer, by kv head: positions ascending, values per key.
struct HeadMass {
  std::vector<uint32_t> pos;
  std::vector<float> value;  // [pos][group_size]
};

// KVASIR_ATTN_MASS_FOLLOWS when some plugin is to be told the mass of these pieces, or 0.
uint32_t mass_follows(const RunContext& context, const Pass& pass);

// The parts whose mass is asked, and the values of their keys in the order of the backend. Refers
// to the pass, to from_pos and to the parts that are added.
class MassCall {
 public:
  // from_pos [pass.pieces]: queries before it do not count. window_only: nor do keys before the
  // window.
  MassCall(const RunContext& context, const Pass& pass, const std::vector<uint32_t>& from_pos,
           bool window_only)
      : c_(context), pass_(pass), from_pos_(from_pos), window_only_(window_only) {}
  // Leaves out parts of other pieces, and with window_only keys at the ends of a range that do not
  // count. The parts of one backend are added one after another.
  void add(const Part& part);
  // Once all parts are added: values are 0 until they are written.
  void make_room();

  // What one backend is asked; refers to this.
  struct Share {
    std::vector<kvasir_attn_part> parts;
    std::vector<uint64_t> offsets{0};  // [ranges of the parts + 1], in keys
    float* value = nullptr;            // [offsets.back()][group_size]
  };
  Share share(bool by_window);
  // [pieces][kv_head]
  std::vector<std::vector<HeadMass>> by_position() const;

 private:
  struct Asked {
    const Part* part = nullptr;
    size_t piece = 0;                         // of the pass
    std::vector<kvasir_attn_range> ranges{};  // for the queries and keys that count
    uint32_t first_pos = 0;                   // keys before it do not count
  };
  // Of one range: `values` [key][group_size], positions from first_pos on only.
  void append(const Part& part, const kvasir_attn_range& range, std::span<const float> values,
              uint32_t first_pos, HeadMass& head) const;
  // The same where the head has some of the positions, or later ones.
  void merge(const Part& part, const kvasir_attn_range& range, std::span<const float> values,
             uint32_t first_pos, HeadMass& head) const;

  const RunContext& c_;
  const Pass& pass_;
  const std::vector<uint32_t>& from_pos_;
  bool window_only_;
  std::vector<Asked> asked_;
  std::vector<uint64_t> offsets_{0};  // [ranges of all asked + 1], in keys
  std::vector<float> value_;          // [key][group_size]
};

}  // namespace kvasir
