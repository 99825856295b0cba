// What a piece attended to: for the counters, and for who observes attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>

#include "core/runtime/attend/part.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Counts the tokens of one piece and layer, over its kv heads, and the bytes of their K and V
// unless these lie in two storages.
void count_tokens(const RunContext& context, uint32_t layer, const Piece& piece,
                  const LayerSelection& selection);
// Counts the bytes of the piece's parts, parts[first_part] on, where the tokens of the two storages
// of hybrid mode may be of unlike sizes.
void count_split_bytes(const RunContext& context, const Piece& piece, const std::deque<Part>& parts,
                       size_t first_part);
// Tells context.on_attend the positions that each piece attends to, ascending, by kv head.
void report_attended(const RunContext& context, const Pass& pass, const std::deque<Part>& parts);

}  // namespace kvasir
