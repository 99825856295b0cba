// What K and V of a run depend on besides tokens, under one name on every process and machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/sequence/content_hash.h"

namespace kvasir {

struct RunIdentity {
  Hash128 run{};      // for ContentHash
  std::string about;  // for people, one line
};

// Two runs have the same name only when a token's K and V are the same bits in both, given the
// tokens before it and how many shared its steps: the model's bytes (`model_hash`), the arithmetic
// of its layers and of attention, rotation, element types, block size, and this version of the
// host.
RunIdentity run_identity(const Model& model, uint64_t model_hash, const Pipeline& pipeline,
                         const kvasir_geometry& geometry, const kvasir_kv_format& format);

}  // namespace kvasir
