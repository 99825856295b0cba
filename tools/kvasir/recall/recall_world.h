// Queries, keys and values over which strategies are measured because their true attention is
// known.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "core/model/synthetic/prescribed_model.h"
#include "core/platform/thread_pool.h"

namespace kvasir::tool {

struct RecallShape {
  uint32_t context = 4096, steps = 32;  // tokens of the prompt; queries decoded after it
  uint32_t sink = 16, window = 64;      // tokens that are always attended
  uint32_t n_layers = 4, n_q_heads = 8, n_kv_heads = 4, head_dim = 64;

  uint32_t group() const { return n_q_heads / n_kv_heads; }
  uint32_t n_tokens() const { return context + steps; }
  uint64_t bytes() const;  // of a RecallWorld and its RecallTruth
};

class RecallWorld {
 public:
  virtual ~RecallWorld() = default;

  const RecallShape& shape() const { return shape_; }
  // Tokens of the prompt whose share of the mass is reported apart; may be empty.
  const std::set<uint32_t>& needles() const { return needles_; }
  virtual PrescribedModel::Geometry geometry() const = 0;
  // Vectors before rotation, for PrescribedModel::Project; token = position.
  virtual void project(uint32_t layer, int32_t token, float* q, float* k, float* v) const = 0;

  // Softmax of the query at `pos` over tokens [0, pos], into mass [pos + 1], and its output o
  // [head_dim].
  void attend(uint32_t layer, uint32_t pos, uint32_t q_head, std::span<float> mass,
              std::span<double> o) const;
  // The same without output, of any rotated query [head_dim] that could stand there.
  void attend_with(const float* q, uint32_t layer, uint32_t kv_head, std::span<float> mass) const;

 protected:
  // Softmax over tokens [0, n), in double.
  std::vector<double> weights(const float* q, uint32_t layer, uint32_t kv_head, size_t n) const;

  struct Layer {
    std::vector<float> q, k, v;  // [token][head][head_dim], rotated
  };
  // softmax_scale: of q.k before the softmax. Layers are filled by who derives.
  RecallWorld(const RecallShape& shape, double softmax_scale);

  RecallShape shape_;
  double softmax_scale_;
  std::set<uint32_t> needles_;
  std::vector<Layer> layers_;
};

// The true attention of every decoded query of every layer but the first, computed once for all
// strategies.
class RecallTruth {
 public:
  // `n_heaviest`: tokens that heaviest() names. between() is called on the pool's threads between
  // two queries; what it throws ends the work.
  RecallTruth(
      const RecallWorld& world, uint32_t n_heaviest, ThreadPool& pool,
      const std::function<void()>& between = [] {});

  // Of the query at `pos` >= context, in `layer` >= 1.
  std::span<const float> mass(uint32_t layer, uint32_t pos, uint32_t q_head) const;  // [pos + 1]
  std::span<const double> output(uint32_t layer, uint32_t pos, uint32_t q_head) const;
  // The tokens with the largest mass between sink and window, in no order.
  std::span<const uint32_t> heaviest(uint32_t layer, uint32_t pos, uint32_t q_head) const;

 private:
  size_t index(uint32_t layer, uint32_t pos, uint32_t q_head) const;

  RecallShape shape_;
  uint32_t n_heaviest_;
  std::vector<float> mass_;         // [layer - 1][step][q_head][context + steps]
  std::vector<double> output_;      // [layer - 1][step][q_head][head_dim]
  std::vector<uint32_t> heaviest_;  // [layer - 1][step][q_head][n_heaviest]
};

}  // namespace kvasir::tool
