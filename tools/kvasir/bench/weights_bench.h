// How fast matrices of each type of weights are multiplied, by the number of rows that share the
// call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/gguf/ggml_type.h"
#include "core/model/layers/compute.h"
#include "core/platform/thread_pool.h"
#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/bench/select_figures.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct WeightsSettings {
  std::vector<GgmlType> types;
  std::vector<uint32_t> n_rows;
  Compute compute = Compute::kInt8;  // as of a model; matrices of F32 are multiplied in f32
  uint32_t n_in = 0;                 // a multiple of the blocks of all types
  uint64_t bytes = 0;                // of each matrix, about
  uint32_t n_repetitions = 0;
};

struct WeightsRow {
  GgmlType type = {};
  Compute compute = {};
  uint32_t n_rows = 0, n_out = 0;
  uint64_t bytes = 0;  // of weights as they lie in memory, of the rows, and of what comes out
  uint64_t multiply_adds = 0;
  Typical seconds;

  double bytes_per_second() const;
  double multiply_adds_per_second() const;
};

struct WeightsReport {
  uint32_t n_in = 0, n_repetitions = 0;
  MeasuredLimits limits;
  std::vector<WeightsRow> rows;  // by type, then by rows
};

// Up to 8 rows read all of a matrix of the given size, larger than caches; more rows multiply its
// first 8192 outputs. Repetitions of all types take turns, with samples of the limits between them.
// Error(kInput) when n_in does not fill the blocks of a type; kResource when the matrices do not
// fit into memory.
WeightsReport measure_weights(ThreadPool& pool, const WeightsSettings& settings);

Json to_json(const WeightsReport& report);
std::string to_text(const WeightsReport& report);

}  // namespace kvasir::tool
