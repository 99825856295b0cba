// Attention mass: which lists of it a plugin asks for, and reading them.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/view.h>
#include <kvasir/selector.h>

#include <cstdint>
#include <string>

namespace kvasir::sdk {

// A plan has one list per kv head, or one per sequence when the selection is shared. Several query
// heads share a list. What counts is the sum of their mass, which the host makes, or the largest of
// them: then the host hands over one list of mass per query head.
class MassHeads {
 public:
  MassHeads() = default;
  // apart: one list of mass per query head, whatever the reduction.
  explicit MassHeads(const kvasir_geometry& geometry, bool apart = false)
      : n_heads_(geometry.head_select_shared ? 1 : geometry.n_kv_heads),
        is_apart_(apart || geometry.gqa_reduce == KVASIR_REDUCE_MAX),
        group_size_(geometry.n_q_heads / n_heads_) {}

  static void validate(const kvasir_geometry& geometry) {
    if (geometry.gqa_reduce != KVASIR_REDUCE_SOFTMAX_SUM) return;
    fail_invalid(
        "gqa_reduce = softmax_sum is for scores, attention mass is probabilities already: "
        "use sum, mean or max");
  }

  void ask(kvasir_sel_limits& out) const {
    out.scope = n_heads_ == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD;
    out.mass.level = KVASIR_MASS_TOKEN;
    out.mass.reduce = is_apart_       ? KVASIR_MASS_PER_Q_HEAD
                      : n_heads_ == 1 ? KVASIR_MASS_SUM_ALL
                                      : KVASIR_MASS_SUM_KV_HEAD;
  }

  uint32_t n_heads() const { return n_heads_; }  // lists of a plan per sequence
  uint32_t n_lists_per_head() const { return is_apart_ ? group_size_ : 1; }  // of mass
  uint32_t n_lists() const { return n_heads_ * n_lists_per_head(); }         // of mass per sequence
  uint32_t group_size() const { return group_size_; }  // query heads that share a list of a plan

 private:
  uint32_t n_heads_ = 1;
  bool is_apart_ = false;
  uint32_t group_size_ = 1;
};

// The host handed over n_lists lists of mass, as limits() asked, in tokens and with values.
inline void check_mass(const kvasir_mass& mass, uint32_t n_lists) {
  if (mass.unit == KVASIR_UNIT_TOKEN && mass.n_lists == n_lists && mass.list_offsets &&
      floats(mass.value, "attention mass")) {
    return;
  }
  fail_invalid("observe: " + std::to_string(mass.n_lists) + " lists of attention mass came, " +
               std::to_string(n_lists) + " lists of tokens were asked for");
}

// fn(token, mass) for each token of a list, ascending.
template <class Fn>
void for_each_mass(const kvasir_mass& mass, uint64_t list, Fn&& fn) {
  const uint64_t begin = mass.list_offsets[list];
  const auto* value = static_cast<const float*>(mass.value.data);
  for (uint64_t i = begin; i < mass.list_offsets[list + 1]; ++i) {
    fn(mass.index ? mass.index[i] : static_cast<uint32_t>(i - begin), value[i]);
  }
}

}  // namespace kvasir::sdk
