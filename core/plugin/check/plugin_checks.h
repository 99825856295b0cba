// The validate mode: everything a plugin is given is a guarded copy, and what it leaves behind is
// compared with what it found. Slow; for whoever tries a plugin before trusting it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/plugin/check/block_sums.h"

namespace kvasir {

// Shared by the plugins of one host.
struct PluginChecks {
  // The backend whose results the strategy's own are compared with, in every n-th call of it; "":
  // none.
  std::string reference;
  uint32_t reference_every = 4;
  BlockSums sums;
  // So far: with guarded arguments, and with the reference.
  std::atomic<uint64_t> n_calls{0}, n_compared{0};
};

}  // namespace kvasir
