// What `kvasir plan` reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {

struct PlanReport {
  struct Plan {
    uint32_t context = 0;  // tokens
    MemoryPlan memory;

    uint64_t bytes_per_step() const;  // weights, K and V, summaries; read per decoded token
  };

  std::string model, strategy;
  Compute compute = Compute::kF32;
  uint32_t n_sequences = 1;
  uint64_t available_bytes = 0;  // of this machine
  double bandwidth = 0;          // bytes per second; 0: not asked for
  std::vector<Plan> plans;       // per context

  double bound_ms_per_token(const Plan& plan) const;
  double bound_tokens_per_second(const Plan& plan) const;
};

Json to_json(const PlanReport& report);
std::string to_text(const PlanReport& report);

}  // namespace kvasir::tool
