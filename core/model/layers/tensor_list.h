// Which tensors a model of a given shape consists of, and the shape of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/model/layers/shape.h"

namespace kvasir {

using TensorShape = std::vector<uint64_t>;  // fastest dimension first, as in the file
using TensorVisitor = std::function<void(const std::string& name, const TensorShape& shape)>;

// In the order of use: embedding, layers, final norm, head (unless tied).
void for_each_tensor(const ModelShape& shape, const TensorVisitor& visit);

// The tensor that logits are multiplied by: the embedding where it is tied.
std::string head_tensor(const ModelShape& shape);
// A vector of the model in f32.   to [tensor's elements]. Error(kInput) for a type of blocks that
// do not divide it.
void read_vector(const GgufFile& file, const std::string& tensor, float* to);

std::string shape_text(const TensorShape& shape);  // "{64, 512}"

// Error naming file, tensor, the shape found and the one expected.
void check_tensor_shape(const GgufFile& file, const std::string& tensor,
                        const TensorShape& expected);

}  // namespace kvasir
