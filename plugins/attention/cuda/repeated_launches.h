// Launches that come again with the same arguments, started as one graph.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cuda/captured.h"

namespace kvasir::attention {

// The first time launches go to the stream one by one, for most of a growing context never come
// again; the second time they are captured.
class RepeatedLaunches {
 public:
  using Arguments = std::vector<uint64_t>;

  RepeatedLaunches() = default;
  ~RepeatedLaunches() { forget(); }
  RepeatedLaunches(const RepeatedLaunches&) = delete;

  // fn(): gives kernels to the stream, nothing else, and the same ones for the same arguments.
  template <class Fn>
  void start(const Arguments& arguments, cuda::Stream stream, const Fn& fn) {
    const auto found = graphs_.find(arguments);
    if (found == graphs_.end()) {
      fn();
      return note(arguments, stream);
    }
    if (!found->second.handle) found->second = cuda::captured(stream, fn);
    cuda::launch_graph(found->second, stream);
  }
  // To be called when the device has ended all that was started.
  void forget() noexcept {
    for (const auto& [arguments, graph] : graphs_)
      if (graph.handle) cuda::destroy_graph(graph);
    graphs_.clear();
  }

 private:
  static constexpr size_t kMost = 64;  // then all begin anew

  void note(const Arguments& arguments, cuda::Stream stream) {
    if (graphs_.size() == kMost) {
      cuda::wait(stream);
      forget();
    }
    graphs_[arguments] = {};
  }

  std::map<Arguments, cuda::Graph> graphs_;  // no handle: met once
};

}  // namespace kvasir::attention
