// See sample_files.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/sample_files.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

void add_sample_file_flags(CLI::App& app, SampleFileFlags& f) {
  std::vector<std::string> formats;
  for (const SampleFormat format : sample_formats()) formats.emplace_back(name(format));
  app.add_option(
         "--samples", f.files,
         "File with samples, instead of --task: JSON lines or one JSON array; once per file")
      ->allow_extra_args(false);
  app.add_option("--samples-format", f.format,
                 "auto (by the fields of the first sample), " + join(formats, ", "));
  app.add_option("--samples-task", f.task,
                 "Name of the task, where samples do not say it (the file's name)");
}

void add_scoring_flags(CLI::App& app, SampleFileFlags& f) {
  std::vector<std::string> scorers;
  for (const Scorer scorer : all_scorers()) scorers.emplace_back(name(scorer));
  app.add_option("--scorer", f.scorer,
                 "Of the answers to --samples (the task's): " + join(scorers, ", "));
  app.add_option("--max-new-tokens", f.max_new_tokens, "Of an answer to --samples (the task's)")
      ->check(CLI::Range(1u, 1000000u));
}

std::vector<SampleSet> read_sample_sets(const SampleFileFlags& f, uint32_t n_samples) {
  ReadSampleOptions options;
  if (f.format != "auto") options.format = sample_format_by_name(f.format, "--samples-format");
  options.task = f.task;
  if (!f.scorer.empty()) options.scorer = scorer_by_name(f.scorer, "--scorer");
  if (f.max_new_tokens) options.max_new_tokens = f.max_new_tokens;
  std::vector<SampleSet> sets;
  for (const std::string& path : f.files) {
    const size_t first_set = sets.size();
    SampleFile file = read_samples(read_file(path, "--samples"), path, options);
    for (SampleText& sample : file.samples) {
      auto set = std::find_if(sets.begin() + static_cast<ptrdiff_t>(first_set), sets.end(),
                              [&](const SampleSet& s) { return s.task == sample.task; });
      if (set == sets.end()) set = sets.insert(sets.end(), {sample.task, file.format, {}});
      if (n_samples == 0 || set->samples.size() < n_samples)
        set->samples.push_back(std::move(sample));
    }
  }
  return sets;
}

}  // namespace kvasir::tool
