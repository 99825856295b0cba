// The cap that a model puts on its logits.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/instance.h>

#include <cmath>

namespace kvasir::sdk {

// A logit, already scaled, as the softmax of this model sees it.
inline double softcapped(const kvasir_geometry& geometry, double logit) {
  const auto cap = static_cast<double>(geometry.softcap);
  return cap == 0.0 ? logit : cap * std::tanh(logit / cap);
}

}  // namespace kvasir::sdk
