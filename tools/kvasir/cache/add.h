// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir::tool {

void add_cache_add(CLI::App& cache);  // the command `kvasir cache add`

}  // namespace kvasir::tool
