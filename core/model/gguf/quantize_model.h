// A model's file written anew with its matrices in other types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/gguf/weight_mix.h"
#include "core/platform/thread_pool.h"

namespace kvasir {

struct RetypedTensor {
  const GgufTensor* tensor;  // of the file
  GgmlType type;             // it is written in

  bool changes() const { return tensor->type != type; }
  // Rounded twice: what the file holds is rounded to blocks already.
  bool is_requantized() const { return changes() && block_elements(tensor->type) > 1; }
  uint64_t n_bytes() const;  // as written
};

// In the order of the file. What is no matrix keeps its type. Error(kInput) when the type of a
// matrix that changes cannot be read.
std::vector<RetypedTensor> retype(const GgufFile& file, const WeightMix& mix);

// Metadata is copied, but for general.file_type and general.quantization_version; a split model
// becomes one file. It appears complete or not at all, and does not depend on the number of
// threads. Takes some 100 MB, whatever the size of the model. `progress` (may be empty) is told the
// bytes written and in all; it may throw to stop. Error(kInput): a number does not fit its type
// (quantize()), the first in the file.
void write_quantized_model(const GgufFile& file, const std::vector<RetypedTensor>& tensors,
                           const WeightMix& mix, const std::string& path, ThreadPool& pool,
                           const std::function<void(uint64_t done, uint64_t total)>& progress = {});

}  // namespace kvasir
