// One course of events for tests that hold an engine against another.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/core/runtime/support.h"

namespace kvasir::test {

// Logits of several chunks, a batch, mixed steps, a fork, cuts where nothing was evicted (can_cut),
// a second prompt, save and load, growth. The engine needs max_sequences >= 4.
Logits story(Engine& engine, bool can_cut);

}  // namespace kvasir::test
