// Turns KTransformers' configuration of its long-context mode into a strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvasir::tool {

struct ImportedStrategy {
  std::string toml;
  std::vector<std::string> notes;  // settings that mean something else here, "file:line: …"
};

// `yaml`: a config.yaml with a section long_context, or that section's keys alone; old and new
// names. Keys left out have the value that KTransformers gives them. `label` names the text in
// messages. kv_types: the types that the storage can hold, in our spelling. Throws Error(kInput)
// with the line of a key that is unknown or given twice, or of a value that no strategy can have.
ImportedStrategy import_ktransformers(const std::string& yaml, const std::string& label,
                                      const std::vector<std::string>& kv_types);

}  // namespace kvasir::tool
