// The two ways into a plugin: counted and timed inside a step, plain outside. Only the .cc files of
// this room include it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "core/plugin/breadcrumb.h"
#include "core/plugin/instance.h"
#include "core/plugin/loader.h"

namespace kvasir {

template <class Fn>
kvasir_status Instance::step_call(const char* function, const kvasir_step* step, Fn&& fn,
                                  uint32_t layer) {
  if (step) layer = step->layer;
  kvasir_err err{};
  err.struct_size = sizeof(err);
  kvasir_status status;
  {
    const BreadcrumbScope crumb({plugin_.desc->id, function, layer});
    const auto begin = std::chrono::steady_clock::now();
    status = fn(&err);
    const auto end = std::chrono::steady_clock::now();
    stats_.nanos += static_cast<uint64_t>((end - begin).count());
  }
  ++stats_.calls;
  const bool is_known = status >= KVASIR_OK && status <= KVASIR_REBUILD;
  if (is_known || status == KVASIR_ERR_CAPACITY) [[likely]]
    return status;
  fail(function, status, err_text(err), step, layer);
}

template <class Fn>
kvasir_status Instance::control_call(const char* function, Fn&& fn, kvasir_status accepted) const {
  kvasir_err err{};
  err.struct_size = sizeof(err);
  kvasir_status status;
  {
    const BreadcrumbScope crumb({plugin_.desc->id, function, Breadcrumb::kNoLayer});
    status = fn(&err);
  }
  if (status != KVASIR_OK && status != accepted) fail(function, status, err_text(err));
  return status;
}

}  // namespace kvasir
