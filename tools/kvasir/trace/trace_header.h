// The header of a trace as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/trace/trace_file.h"

namespace kvasir::tool {

std::string trace_header_text(const TraceHeader& header);

// Untrusted text. Error(kInput) names the file, the key, and what is expected of it; keys that are
// not known are errors.
TraceHeader parse_trace_header(const std::string& text, const std::string& path);

}  // namespace kvasir::tool
