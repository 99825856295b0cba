// See below.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"
