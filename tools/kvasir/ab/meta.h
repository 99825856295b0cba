// What an A/B run was declared to be before its first sample, and where it was made:
// run_meta.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/ab/runner.h"
#include "tools/kvasir/session/run_report.h"

namespace kvasir::tool {

struct AbDeclared {
  AbOptions options;
  double margin = 0;  // difference of accuracies that does not matter, as a share
  double most_attended = kMostAttendedPercent;  // percent
  std::string sweep_key;                        // "": none
  std::vector<std::string> words;  // the flags, as --resume gives them to the command again
  bool measure_bandwidth = true;
};

// "declared" must be the same when a run goes on; the rest says where it began: the versions, the
// model, the plugins' files with their hashes, the machine.
Json make_meta(const AbParts& parts, const Options& options, const AbDeclared& declared);

}  // namespace kvasir::tool
