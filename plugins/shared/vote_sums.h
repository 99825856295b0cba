// Attention mass of a prompt's last queries, summed per token: the votes of SnapKV and methods like
// it.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/mass.h>
#include <kvasir/sdk/state.h>
#include <kvasir/sdk/step.h>

#include <cstdint>
#include <vector>

namespace kvasir::sdk {

// Of one sequence and layer. They live from the first voting query to the prompt's end.
struct VoteSums {
  uint32_t prompt_begin = 0, prompt_end = 0;
  std::vector<float> votes;  // [list][prompt_end]; empty: nobody voted yet

  // Adds lists [first, first + n_lists) of the mass, those of sequence `seq`. Votes of an earlier
  // prompt, whose end never came, are not those of this one.
  void add(const kvasir_step_seq& seq, const kvasir_mass& mass, uint64_t first, uint32_t n_lists) {
    if (prompt_begin != seq.prompt_begin || prompt_end != seq.prompt_end) {
      *this = {seq.prompt_begin, seq.prompt_end, {}};
    }
    votes.resize(uint64_t{n_lists} * prompt_end);
    for (uint32_t i = 0; i < n_lists; ++i) {
      float* const to = votes.data() + uint64_t{i} * prompt_end;
      for_each_mass(mass, first + i, [&](uint32_t token, float value) {
        if (token < prompt_end) to[token] += value;
      });
    }
  }
  // Of one layer, on a prompt of n tokens.
  static uint64_t bytes(uint64_t n_lists, uint64_t n) { return n_lists * n * sizeof(float); }
  const float* list(uint64_t i) const { return votes.data() + i * prompt_end; }

  void save(StateWriter& out) const {
    out.put(prompt_begin);
    out.put(prompt_end);
    out.put(static_cast<uint8_t>(!votes.empty()));
    if (!votes.empty()) out.put_list(votes);
  }
  static VoteSums load(uint32_t n_lists, uint32_t max_context, StateReader& in) {
    VoteSums out;
    out.prompt_begin = in.take<uint32_t>();
    out.prompt_end = in.take<uint32_t>();
    if (out.prompt_begin > out.prompt_end || out.prompt_end > max_context) {
      in.damaged("votes of a prompt that cannot be");
    }
    if (in.take_flag()) {
      out.votes = in.take_numbers<float>(uint64_t{n_lists} * out.prompt_end, true, "votes");
      if (out.votes.empty()) in.damaged("votes of no tokens");
    }
    return out;
  }
};

}  // namespace kvasir::sdk
