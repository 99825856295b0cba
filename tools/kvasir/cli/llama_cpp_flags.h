// Flags that users of llama.cpp know: those with no meaning here yet, and its long flags behind one
// dash.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

// Flags of llama.cpp that mean nothing here yet: each prints one line, "not yet: why", on stderr.
void add_not_yet_flags(CLI::App& app);

// The arguments in CLI11's order. llama.cpp's long flags with one dash (-ngl, -ctk …) get a second
// one.
std::vector<std::string> normalise_arguments(int argc, char** argv);

}  // namespace kvasir::tool
