// Rows that the model projected, of all queries of a step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <initializer_list>

#include "core/model/layers/model.h"
#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {

// f32, on the host; or on the device of a model, until somebody asks for them on the host.
class ModelRows {
 public:
  ModelRows() = default;
  ModelRows(const float* host) : host_(host) {}  // NOLINT: every array of the host is such rows
  // host: the array that Model::project_turned() was given.
  ModelRows(const Model& model, const float* host, const float* on_device)
      : model_(&model), host_(host), on_device_(on_device) {}

  const float* on_host() const {
    if (on_device_) model_->read_projected(host_);
    return host_;
  }
  // For a plugin that gets its device memory through `bridge`: where they are, if it reads there.
  kvasir_view view_for(const Instance& reader, const MemoryBridge& bridge,
                       std::initializer_list<uint64_t> shape) const {
    const bool is_there = on_device_ && reader.reads(KVASIR_MEM_DEVICE);
    return bridge.view(is_there, is_there ? on_device_ : on_host(), shape);
  }

 private:
  const Model* model_ = nullptr;
  const float *host_ = nullptr, *on_device_ = nullptr;
};

// Where attention leaves what it makes of all queries of a step: on the host, or on the model's
// device, where it was NaN before and lse follows o directly.
struct AttentionRows {
  float* o = nullptr;    // [queries][n_q_heads][v_dim]
  float* lse = nullptr;  // [queries][n_q_heads]
  bool on_device = false;
};

}  // namespace kvasir
