// The report of an A/B run as one HTML file that needs nothing else: no script, no network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/kvasir/ab/summary.h"

namespace kvasir::tool {

// meta: of run_meta.json.
std::string to_html(const AbSummary& summary, const Json& meta);

// Text as it stands in an element or in an attribute between double quotes.
std::string escaped(const std::string& text);

}  // namespace kvasir::tool
