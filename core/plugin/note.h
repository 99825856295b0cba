// The Kvasir note of a shared object, read from the file without running or mapping it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

struct PluginNote {
  uint32_t abi_major = 0, abi_minor = 0, required_minor = 0;
  uint32_t kinds = 0, cpu_features = 0;
  std::string version;
  std::vector<std::string> ids, drafts;
};

// Fills `note` as far as it can be read. Returns an empty string, or why the file is no plugin of
// this ABI: "not found", "is a directory", "not an ELF file", wrong machine, no note, damaged note.
// A note of another major is returned with its major only: its layout may differ.
std::string read_plugin_note(const std::string& path, PluginNote& note);

}  // namespace kvasir
