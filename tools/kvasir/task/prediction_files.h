// Answers in the files that the scorers of other harnesses read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/task/formats/sample_file.h"
#include "tools/kvasir/cli/files.h"

namespace kvasir::tool {

// Below the folder: STRATEGY/preds_TASK.jsonl for InfiniteBench, STRATEGY/TASK.jsonl for RULER,
// STRATEGY/samples_TASK.jsonl for lm-evaluation-harness, STRATEGY.jsonl for LongBench v2.
class PredictionFiles {
 public:
  PredictionFiles(std::string folder, SampleFormat format, bool overwrites);
  // Error(kInput) when the file is there and may not be overwritten.
  void open(const std::string& strategy, const std::string& task);
  // Of a strategy and task that were opened.
  void add(const std::string& strategy, const SampleText& sample, const std::string& given,
           double score);
  void finish();  // the files appear

 private:
  std::string path(const std::string& strategy, const std::string& task) const;

  std::string folder_;
  SampleFormat format_;
  bool overwrites_;
  std::map<std::string, std::unique_ptr<Output>> files_;  // by path
};

}  // namespace kvasir::tool
