// Options of shipped strategies that change how a step goes, as further entries of the table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/strategies/table.h"

namespace kvasir::test {

void add_variants(std::vector<Entry>& entries);

}  // namespace kvasir::test
