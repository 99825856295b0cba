// The validate mode's second opinion on attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>

#include "core/plugin/instance.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class ReferenceCheck {
 public:
  // Of the runs of this backend.
  ReferenceCheck(const RunContext& context, const Attention& backend)
      : c_(context), backend_(backend) {}
  // In every n-th run, where the pipeline has a reference: throws PluginError when o [queries]
  // [n_q_heads][v_dim] or lse [queries][n_q_heads] of a piece's last query is not what the
  // reference makes of the same input. Queries in device memory are not compared.
  void compare(const kvasir_step& step, const kvasir_attn_in& in, const Pass& pass, const float* o,
               const float* lse);

 private:
  void check(const Pass& pass, uint64_t query, uint64_t head, const float* o, const float* right_o,
             float lse_apart) const;

  const RunContext& c_;
  const Attention& backend_;
  uint64_t n_runs_ = 0;
};

}  // namespace kvasir
