// Samples that are read from files instead of made: flags that several commands share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/formats/sample_file.h"
#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

struct SampleFileFlags {
  std::vector<std::string> files;
  std::string format = "auto", task, scorer;
  uint32_t max_new_tokens = 0;  // 0: of the samples
};
void add_sample_file_flags(CLI::App& app, SampleFileFlags& flags);  // --samples and what reads it
void add_scoring_flags(CLI::App& app, SampleFileFlags& flags);      // --scorer, --max-new-tokens

// The samples of one task in one file.
struct SampleSet {
  std::string task;
  SampleFormat format = SampleFormat::kKvasir;
  std::vector<SampleText> samples;
};
// At most n_samples of each task; 0: all. Error(kInput) naming file, line and field.
std::vector<SampleSet> read_sample_sets(const SampleFileFlags& flags, uint32_t n_samples);

}  // namespace kvasir::tool
