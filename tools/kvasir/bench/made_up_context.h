// Contexts that nobody read: keys and values like those of a sample, stored as those of a prompt
// are. A million tokens in the time that storing them takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/model/layers/shape.h"
#include "core/platform/thread_pool.h"
#include "core/runtime/engine.h"

namespace kvasir::tool {

// Queries, keys and values of the first tokens of a text, before RoPE.
struct ProjectionSample {
  uint32_t n_tokens = 0;
  std::vector<std::vector<float>> q, k, v;  // [layer][n_tokens][heads][dim]
};

// Independent draws from a normal distribution, of variance 1.
ProjectionSample normal_sample(const ModelShape& shape, uint32_t n_tokens, uint64_t seed);

// The token at position p is one of the sample, drawn from seed and p, plus a quarter of the
// difference of two others: the sample's mean and nearly its spread, and no token twice. The first
// four are the sample's own, since what stands first is unlike the rest in trained models. The pool
// must outlive the result.
GivenProjections made_up_projections(ProjectionSample sample, const ModelShape& shape,
                                     uint64_t seed, ThreadPool& pool);

// What the storage of a strategy keeps, "f16": its option `key` ("type_k"); "-" without one.
std::string stored_type(const Pipeline& pipeline, const std::string& key);

}  // namespace kvasir::tool
