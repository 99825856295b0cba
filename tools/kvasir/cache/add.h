// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

void add_cache_add(CLI::App& cache);  // the command `kvasir cache add`

}  // namespace kvasir::tool
