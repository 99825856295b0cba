// Whether the layouts that a storage says its blocks have can hold K and V of the run's shape.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <span>

#include "core/plugin/instance.h"

namespace kvasir {

// Throws PluginError: rows that overlap, a type that is not in the storage's description or does
// not divide head_dim or v_dim into groups, strides beyond any memory.
void check_formats(const Storage& storage, std::span<const kvasir_kv_format> formats,
                   const kvasir_geometry& geometry);

}  // namespace kvasir
