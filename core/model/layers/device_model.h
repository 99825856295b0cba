// A model whose last layers are on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "core/model/layers/device_layers.h"
#include "core/model/layers/model.h"

namespace kvasir {

// Which part of a model Model::Options puts on a device: layers from first_layer on.
struct DevicePart {
  uint32_t first_layer = 0, n_layers = 0;  // of the model
  bool has_head = false;

  DevicePart(const ModelShape& shape, const Model::Options& options);
  bool is_empty() const { return first_layer == n_layers; }
  bool has_layer(uint32_t layer) const { return layer >= first_layer; }
};

// Bytes of its weights on the device, in the types of the file. file: null for weights of a shape,
// whose matrices have so many bytes per weight.
uint64_t device_weight_bytes(const DevicePart& part, const ModelShape& shape, const GgufFile* file,
                             uint64_t bytes_per_weight = sizeof(float));
// Whether products on the device are those of DeviceShape::exact.
bool device_is_exact(const Model::Options& options);
DeviceShape device_shape(const DevicePart& part, const ModelShape& shape,
                         const Model::Options& options);

// Asks the device first, so that what is lacking is told before the host's part is made: there is
// no library or no device, or its memory is too small (Error(kResource)).
std::unique_ptr<Model> make_device_model(const GgufFile& file, const ModelShape& shape,
                                         const Model::Options& options,
                                         const std::function<std::unique_ptr<Model>()>& make_host);

}  // namespace kvasir
