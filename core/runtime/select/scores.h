// Scores of candidates, for selectors that choose by them: the representative gives one per query
// head, or their sum per kv head where it can and that is asked for; the query heads that choose
// together get one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/runtime/select/candidates.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Whether the representative gives one score per kv head, the sum of those of its query heads.
bool gives_sums(const Representative& representative, const kvasir_geometry& geometry);
// kvasir_score_in.n_best: how many scores of a list the selector looks at, where they are those
// that the representative gives; 0: every one.
uint32_t scores_that_count(const Selector& selector, const Representative& representative,
                           const kvasir_geometry& geometry);

// Whether the core can foresee in this way what the pipeline chooses: there is one selector, which
// does not speculate itself, and what it chooses follows from its layer's query alone.
bool can_foresee(const Pipeline& pipeline, const kvasir_geometry& geometry, Foresee how);

// Whether scores for the pipeline's selector stay where the representative writes them, on a
// device: the host has nothing to do with them but have the storage check them.
bool scores_can_stay(const Pipeline& pipeline, const kvasir_geometry& geometry);

struct Scores {
  // Score i of head h of sequence s: value[offsets[s * n_heads + h] + i], in the order of the
  // candidates, f32, unscaled. `value` is not null where there are none.
  std::vector<float> value;
  std::vector<uint64_t> offsets;  // [n_seqs * n_heads + 1]
  uint32_t n_heads = 0;           // kv heads, or 1 where all heads choose alike
  // f32 [offsets[last]]: those of `value`; or on the device, until the next score(), and `value` is
  // empty.
  kvasir_view view{};
  uint64_t read = 0;  // kvasir_score_out.bytes_read
};

// What is done with scores that stay.
enum class Stay {
  kNever,  // they are on the host
  kChecked,
  kUnchecked,  // until accept(), before the next score()
};

class Scorer {
 public:
  explicit Scorer(const RunContext& context) : c_(context) {}

  // Of the pieces' candidates, in blocks; several queries of a piece are scored by their mean.
  // n_best: 0, or scores_that_count(). stay: they stay on the device where they are written there
  // and nothing is to be done with them but a check, which the storage makes. Counts the bytes that
  // are read. Throws PluginError.
  Scores score(const Pass& pass, const std::vector<const Candidates*>& candidates, uint32_t n_best,
               Stay stay);
  // Counts those that stayed unchecked, once it is known whether they are finite. Throws likewise.
  void accept(const Scores& scores, bool are_finite, const Pass& pass,
              const std::vector<const Candidates*>& candidates);

 private:
  struct Queries {  // query i is that of piece i
    ModelRows q{};
    uint64_t n = 0;
  };
  // Numbers the pieces' queries anew where there is not one for each.
  Queries one_per_piece(Pass& pass);
  bool sums() const { return gives_sums(*c_.pipeline.representative, c_.geometry); }
  Scores lay_out(const std::vector<const Candidates*>& candidates);
  // Whether those that the representative gives are those that the selector gets.
  bool is_given(const Scores& scores) const { return sums() && n_given_ == scores.n_heads; }
  // Returns kvasir_score_out.bytes_read.
  uint64_t ask(const Pass& pass, const Queries& queries,
               const std::vector<const Candidates*>& candidates, uint32_t n_best,
               const kvasir_view& into);
  void check_finite(bool are) const;
  // From where ask() wrote them.
  void bring_back(const kvasir_view& written, std::span<float> into);
  void count(const Pass& pass, const std::vector<const Candidates*>& candidates, uint64_t read);
  void reduce(Scores& out) const;

  const RunContext& c_;
  MemoryBridge::Buffer q_hold_, score_hold_;  // where the representative works on a device
  std::vector<float> means_;                  // [pieces][n_q_heads][head_dim]
  uint32_t n_given_ = 0;                      // heads that the representative scores: q or kv heads
  std::vector<float> given_;                  // its scores, where they are reduced
  std::vector<uint64_t> given_offsets_;       // [pieces * n_given_ + 1]
};

}  // namespace kvasir
