// What a model file holds: shape, tensors, tokenizer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/layers/model.h"
#include "core/model/tokenizer/tokenizer.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct TokenizerInfo {
  std::string problem;  // why there is none; empty when there is one
  std::string model, pre;
  uint32_t vocab_size = 0;
  TokenId bos = kNoToken, eos = kNoToken, unk = kNoToken;
  bool add_bos = false;
};

struct TensorType {  // all tensors of one type together
  std::string type;
  uint64_t n_tensors = 0, n_elements = 0, n_bytes = 0;
};

struct TensorInfo {
  std::string name, type;
  std::vector<uint64_t> shape;
  uint64_t n_bytes = 0;
};

struct ModelInfo {
  std::string file, name;
  uint64_t file_bytes = 0;
  uint32_t gguf_version = 0;
  std::optional<ModelShape> shape;
  std::string problem;  // why there is no shape
  uint64_t n_parameters = 0;
  TokenizerInfo tokenizer;
  std::string chat_template;  // its family, "none" or "unknown"
  std::vector<TensorType> tensor_types;
  std::vector<TensorInfo> tensors;                            // where asked for
  std::vector<std::pair<std::string, std::string>> metadata;  // where asked for: key, short text
};

struct ModelInfoOptions {
  bool tensors = false, metadata = false;
};
// With tensors or metadata asked for, a model that cannot be run is a problem in the result, else
// an Error.
ModelInfo model_info(const GgufFile& file, const ModelInfoOptions& options);

Json to_json(const ModelInfo& info);
std::string to_text(const ModelInfo& info);

}  // namespace kvasir::tool
