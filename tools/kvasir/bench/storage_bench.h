// How fast `tiered` brings random blocks back from its file, beside plain reads of as many bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/kvasir/bench/select_figures.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct StorageSettings {
  std::string folder;                     // of both files
  std::vector<uint32_t> block_kibibytes;  // K and V of a block
  std::vector<uint32_t> depths;           // most reads at a time
  uint64_t file_bytes = 0;                // about, of each file
  uint32_t n_repetitions = 0;
};

struct StorageRow {
  uint64_t block_bytes = 0;  // K and V
  uint64_t read_bytes = 0;   // with checksums, and to the end of a page: what a call reads
  uint32_t depth = 0;
  Typical tiered, raw;   // bytes/s that the calls read
  double share = 0;      // of repetitions that took turns, the median of tiered / raw
  double at_a_time = 0;  // reads of tiered under way, on average
  bool direct = false;   // raw was past the page cache
  bool uring = false;    // raw had more than one at a time
};

struct StorageReport {
  StorageSettings settings;
  std::vector<StorageRow> rows;
};

// Error(kInput) when a block does not fit, Error(kResource) when a file cannot be written.
StorageReport measure_storage(const Options& options, const StorageSettings& settings);

Json to_json(const StorageReport& report);
std::string to_text(const StorageReport& report);

}  // namespace kvasir::tool
