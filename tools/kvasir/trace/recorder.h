// Records what a model computes over tokens into a Trace.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/runtime/engine.h"
#include "tools/kvasir/trace/trace_file.h"

namespace kvasir::tool {

// Why a replay could not show what the model computes; empty: it can.
std::string why_no_trace(const ModelShape& shape);

// All layers, f16, `context` tokens of a prompt and `steps` decoded behind it.
TraceHeader trace_header(const ModelShape& shape, uint32_t context, uint32_t steps);

// Reads all tokens but the last `steps` as a prompt and decodes these, by the engine's first
// strategy. on_tokens(so many are done) is called after each piece; what it throws ends the work.
void record_tokens(Engine& engine, std::span<const TokenId> tokens, uint32_t steps,
                   const std::function<void(uint32_t)>& on_tokens);

}  // namespace kvasir::tool
