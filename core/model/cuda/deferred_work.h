// Work of a stream that is put off until somebody needs it, and then given to the device at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace kvasir {

// What came before in the same form is one graph: it was captured then, and starts as a whole.
class DeferredWork {
 public:
  // The stream must outlive it.
  explicit DeferredWork(cuda::Stream stream) : stream_(stream) {}
  ~DeferredWork() { forget_graphs(); }
  DeferredWork(const DeferredWork&) = delete;

  // form: which work it is, and everything that addresses, sizes and numbers of its launches follow
  // from, but for what never changes. comes_again: in this form, so often that a graph is worth it.
  void add(const std::vector<uint32_t>& form, bool comes_again, std::function<void()> work);
  bool is_empty() const { return work_.empty(); }
  // To the stream, in the order in which it was added. What it throws is lost, and the rest with
  // it.
  void give();

 private:
  static constexpr size_t kMostGraphs = 1024;  // then all are captured anew
  cuda::Graph graph_of(const std::vector<uint32_t>& form,
                       const std::vector<std::function<void()>>& work);
  void forget_graphs() noexcept;

  cuda::Stream stream_;
  std::vector<std::function<void()>> work_;
  std::vector<uint32_t> form_;  // of all of it
  bool comes_again_ = true;
  std::map<std::vector<uint32_t>, cuda::Graph> graphs_;
};

}  // namespace kvasir
