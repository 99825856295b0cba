// The files of a run that are made when it ends.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/ab/summary.h"

namespace kvasir::tool {

// metrics.json, report.html and report.md.
void write_reports(const RunFolder& run, const AbSummary& summary);

}  // namespace kvasir::tool
