// A plugin file that was never seen before is loaded in a process of its own first: what crashes or
// hangs there does not take this one along.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/plugin/registry.h"

namespace kvasir::tool {

// Why the file must not be loaded, or "". Runs `kvasir plugin probe FILE` once per state of a file
// (device, inode, size, times) and remembers what went well. Files beside the program are part of
// it and are not tried; without a cache folder each run tries anew.
std::string first_contact(const PluginFile& file);

// What the other process does: load, describe, create with defaults, destroy. Throws Error(kInput)
// when the file refuses.
void probe_plugin(const std::string& path);

}  // namespace kvasir::tool
