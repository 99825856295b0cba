// KTransformers' configuration of its long-context mode as a strategy of ours.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvasir::tool {

struct ImportedStrategy {
  std::string toml;
  std::vector<std::string> notes;  // what does not mean quite the same here, "file:line: …"
};

// `yaml`: a config.yaml with a section long_context, or that section's keys alone; `label` names it
// in messages. Old and new names; keys left out have the value that KTransformers gives them.
// kv_types: what the storage can hold, in our spelling.
// Throws Error(kInput) with the line for what is unknown, given twice, or cannot be said here.
ImportedStrategy import_ktransformers(const std::string& yaml, const std::string& label,
                                      const std::vector<std::string>& kv_types);

}  // namespace kvasir::tool
