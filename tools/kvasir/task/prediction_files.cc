// See prediction_files.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/prediction_files.h"

#include <filesystem>
#include <utility>

#include "core/error.h"

namespace kvasir::tool {

namespace fs = std::filesystem;

namespace {

// A name that a file of samples gave stays below the folder.
std::string file_name(const std::string& name) {
  std::string out = name;
  for (char& c : out)
    if (c == '/' || c == '\0') c = '_';
  return out == "." || out == ".." ? "_" : out;
}

}  // namespace

PredictionFiles::PredictionFiles(std::string folder, SampleFormat format, bool overwrites)
    : folder_(std::move(folder)), format_(format), overwrites_(overwrites) {}

std::string PredictionFiles::path(const std::string& strategy, const std::string& task) const {
  const fs::path folder(folder_);
  switch (format_) {
    case SampleFormat::kInfiniteBench:
      return folder / file_name(strategy) / ("preds_" + file_name(task) + ".jsonl");
    case SampleFormat::kLmEval:
      return folder / file_name(strategy) / ("samples_" + file_name(task) + ".jsonl");
    case SampleFormat::kLongBench2:
      return folder / (file_name(strategy) + ".jsonl");
    default:
      return folder / file_name(strategy) / (file_name(task) + ".jsonl");
  }
}

void PredictionFiles::open(const std::string& strategy, const std::string& task) {
  const std::string file = path(strategy, task);
  std::unique_ptr<Output>& out = files_[file];
  if (out) return;
  check_overwrite(file, overwrites_);
  const fs::path folder = fs::path(file).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw input_error("--predictions " + folder_ + ": cannot make " + folder.string() + ": " +
                      error.message());
  out = std::make_unique<Output>(file, Output::As::kWhole);
}

void PredictionFiles::add(const std::string& strategy, const SampleText& sample,
                          const std::string& given, double score) {
  files_.at(path(strategy, sample.task))
      ->write(prediction_line(format_, sample, given, score) + "\n");
}

void PredictionFiles::finish() {
  for (const auto& [path, out] : files_) out->finish();
}

}  // namespace kvasir::tool
