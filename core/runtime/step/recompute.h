// Tokens of a sequence computed again at their positions: they replace their K and V in a layer
// and attend densely.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/runtime/step/lane.h"
#include "core/runtime/step/step_buffers.h"

namespace kvasir {

// One layer: narrows where the item has a hook, rewrites, attends. Throws what ends the sequence.
void recompute_layer(Lane& lane, Lane::Redo& redo, uint32_t layer, StepBuffers& buffers);

// Before it, of an item that is placed: the layer's K and V, which are there, are appended and not
// sealed before some of them are computed again.
void place_layer(Lane& lane, Lane::Redo& redo, uint32_t layer);

// After the last layer: records of the blocks from the first changed one on are made anew.
void feed_again(Lane& lane, const Lane::Redo& redo);

}  // namespace kvasir
