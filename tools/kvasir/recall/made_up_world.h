// The data of `kvasir bench recall`: queries, keys and values made from a seed, not by a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tools/kvasir/recall/recall_world.h"

namespace kvasir::tool {

struct Planted {
  uint32_t needles = 8;      // tokens, none of them among sink and window
  double needle_mass = 0.5;  // share of the attention that they have together
  // How much queries of one head differ, 0 = equal ones: the cosine of two is 1 / (1 + drift^2).
  double drift = 0.3;
  // Cosine of a query and the one that is rehearsed from the layer before; 1 = the query itself.
  double rehearsal = 0.95;
};

// Makes each layer's vectors as they are after rotation, and rotates them back for project().
// Logits of ordinary keys are normally distributed. Needles have the same positions in every layer.
class MadeUpWorld final : public RecallWorld {
 public:
  MadeUpWorld(const RecallShape& shape, const Planted& planted, uint64_t seed);

  PrescribedModel::Geometry geometry() const override;
  void project(uint32_t layer, int32_t token, float* q, float* k, float* v) const override;

 private:
  void fill(Layer& layer, std::mt19937_64& random) const;
  void rehearse(uint32_t layer, uint32_t token, float* q) const;
  void turn_back(const std::vector<float>& from, uint32_t heads, uint32_t token, float* to) const;

  Planted planted_;
  uint64_t seed_;
  RopeTable rope_;
};

}  // namespace kvasir::tool
