// Loads the library that computes layers on a device, and checks that it belongs to this build.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/model/layers/device_layers.h"

namespace kvasir {

// The file stays loaded until the process ends. Error(kResource): there is no such file, it cannot
// be loaded, or it is of another build; each says what to do.
const DeviceLibraryTable& open_device_library(const std::string& path);

}  // namespace kvasir
