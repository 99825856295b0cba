// Below `kvasir ab`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

// Error(kInput) when flags or arms of `ab` stand before the name of a command below it.
void refuse_before(const CLI::App& command);

void add_ab_show(CLI::App& ab);
void add_ab_diff(CLI::App& ab);

}  // namespace kvasir::tool
