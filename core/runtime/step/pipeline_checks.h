// What plugins that are bound say of themselves, held against each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/runtime/step/binding.h"

namespace kvasir {

// Throws Error(kInput), which names the plugins, where the units, lists, weights, positions or the
// foresight of one do not go with another or with what [cache] says.
void check_together(const Pipeline& pipeline, const Binding& binding);

}  // namespace kvasir
