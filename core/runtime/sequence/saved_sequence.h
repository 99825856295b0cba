// A sequence as bytes: tokens, blocks, records, evictions, the selections at hand and the plugins'
// own state, so that another process goes on where this one stopped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/runtime/sequence/byte_stream.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Little-endian, ends with an XXH3 of all before. Error(kInput) when a plugin keeps state per
// sequence and offers no kvasir.state/1, or when blocks cannot move as bytes.
void save_sequence(const RunContext& context, Sequence& seq, const ByteSink& sink);

// Untrusted bytes: sizes are checked before anything is allocated for them. `name` stands for them
// in errors: another model, strategy or plugin version says which setting differs. `into` is open
// and empty and must be closed when this throws.
void load_sequence(const RunContext& context, std::span<const std::byte> bytes,
                   const std::string& name, Sequence& into);

}  // namespace kvasir
