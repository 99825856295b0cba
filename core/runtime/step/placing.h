// K and V that come from elsewhere, a layer at a time, while the model computes the layer before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <vector>

namespace kvasir {

// What a step puts behind the tokens that a sequence holds (StepItem::placing).
struct Placing {
  // Writes k [tokens][n_kv_heads][head_dim] and v [tokens][n_kv_heads][v_head_dim] of one layer.
  // Asked once per layer, ascending. May call Engine::read_kv() and restore_layer() of other
  // sequences, and nothing else of the engine.
  std::function<void(uint32_t layer, float* k, float* v)> load;
  std::span<const int32_t> turn = {};  // [tokens], as StepItem::given_turn; empty: keys stay
  // load() of the next layer runs on a thread of its own, between the last call of the storage in
  // this layer and the first one in the next. False: each layer is loaded when it is needed. So
  // it is, too, where K and V are not in memory of the host.
  bool ahead = true;
  // Told of each layer that was loaded: the seconds that load() took, and how many of them the step
  // waited. May be null.
  std::function<void(uint32_t layer, double load_seconds, double wait_seconds)> loaded = {};
};

// The layers of one Placing, one after the other. A storage has one caller at a time as long as
// nothing of it is called between start() and wait().
class PlacedLayers {
 public:
  // turn(layer, k): gives loaded keys their positions. k_width, v_width: floats of a token.
  PlacedLayers(const Placing& placing, uint32_t n_tokens, uint32_t n_layers, uint64_t k_width,
               uint64_t v_width, std::function<void(uint32_t layer, float* k)> turn);
  ~PlacedLayers();
  PlacedLayers(const PlacedLayers&) = delete;
  PlacedLayers& operator=(const PlacedLayers&) = delete;

  // Begins to load a layer on another thread. Nothing beyond the last layer, or without `ahead`.
  void start(uint32_t layer);
  // Until k() and v() are those of the layer. Throws what load() threw.
  void wait(uint32_t layer);
  const float* k() const { return k_.data(); }
  const float* v() const { return v_.data(); }
  uint32_t n_tokens() const { return n_tokens_; }

 private:
  double load(uint32_t layer);  // returns seconds

  const Placing& placing_;
  uint32_t n_tokens_, n_layers_;
  std::function<void(uint32_t layer, float* k)> turn_;
  std::vector<float> k_, v_;
  std::future<double> loading_;
};

}  // namespace kvasir
