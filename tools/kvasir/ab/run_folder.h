// The folder of an A/B run. run_meta.json says what was declared before the first sample;
// predictions.csv grows by one sample under all strategies at a time, so that a run that was ended
// anywhere goes on behind its last whole sample.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/kvasir/ab/layer_record.h"
#include "tools/kvasir/ab/record.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct AbRun {
  Json meta;
  std::vector<AbRecord> records;  // of whole samples, in the order they were answered
  std::vector<LayerRecord> layers;
};

// A run as its folder has it, whole samples only. Error(kInput) naming the file when it is none, or
// a line in the middle of it is none.
AbRun read_run(const std::string& folder);

using CellKey = std::tuple<std::string, uint32_t, std::string>;  // task, length, strategy
inline CellKey cell_of(const AbRecord& r) { return {r.task, r.length, r.strategy}; }

// Why strategies failed, by label.
std::map<std::string, std::string> failed_in(const AbRun& run);

// Whether a run was begun there.
bool has_run(const std::string& folder);

// Writes to a folder. One process writes at a time: a lock on the folder, Error(kInput) when
// another has it for longer than a killed one needs to end.
class RunFolder {
 public:
  // A new run, or one to go on with: then `meta`'s "declared" must be what the folder says, and
  // program and plugins the same files, else Error(kInput) with the first difference. What follows
  // the last whole sample is cut off.
  RunFolder(const std::string& folder, const Json& meta);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const AbRun& run() const { return run_; }
  // One sample; it is on the disk when this returns.
  void add(const std::vector<AbRecord>& records);
  // Those of one sample, all layers of all strategies.
  void add_layers(const std::vector<LayerRecord>& records);
  // A file beside them, replaced whole.
  void write(const std::string& name, const std::string& text) const;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  void lock();
  void open_predictions();

  std::string folder_;
  AbRun run_;
  int lock_ = -1, predictions_ = -1;
};

}  // namespace kvasir::tool
