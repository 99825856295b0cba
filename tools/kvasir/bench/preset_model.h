// A model with random weights for the time of a command.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvasir::tool {

// Writes `kvasir model random PRESET --type TYPE` to a folder of its own below $TMPDIR (/tmp),
// which goes with the object.
class PresetModel {
 public:
  PresetModel(const std::string& preset_name, const std::string& type);
  ~PresetModel();
  PresetModel(const PresetModel&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string folder_, path_;
};

}  // namespace kvasir::tool
