// Layers loaded ahead; see placing.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/placing.h"

#include <chrono>
#include <utility>

#include "core/platform/affinity.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

PlacedLayers::PlacedLayers(const Placing& placing, uint32_t n_tokens, uint32_t n_layers,
                           uint64_t k_width, uint64_t v_width,
                           std::function<void(uint32_t layer, float* k)> turn)
    : placing_(placing),
      n_tokens_(n_tokens),
      n_layers_(n_layers),
      turn_(std::move(turn)),
      k_(n_tokens * k_width),
      v_(n_tokens * v_width) {}

PlacedLayers::~PlacedLayers() {
  if (loading_.valid()) loading_.wait();
}

double PlacedLayers::load(uint32_t layer) {
  const auto begin = Clock::now();
  placing_.load(layer, k_.data(), v_.data());
  if (!placing_.turn.empty()) turn_(layer, k_.data());
  return seconds_since(begin);
}

void PlacedLayers::start(uint32_t layer) {
  if (!placing_.ahead || layer >= n_layers_) return;
  loading_ = std::async(std::launch::async, [this, layer, cpus = thread_affinity_before_binding()] {
    restore_thread_affinity(cpus);  // the caller may be bound to one core
    return load(layer);
  });
}

void PlacedLayers::wait(uint32_t layer) {
  const auto begin = Clock::now();
  const bool was_begun = loading_.valid();
  const double load_seconds = was_begun ? loading_.get() : load(layer);
  if (placing_.loaded)
    placing_.loaded(layer, load_seconds, was_begun ? seconds_since(begin) : load_seconds);
}

}  // namespace kvasir
