// Below `kvasir ab`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir::tool {

void add_ab_show(CLI::App& ab);
void add_ab_diff(CLI::App& ab);

}  // namespace kvasir::tool
