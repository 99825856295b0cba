// See deferred_work.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/cuda/deferred_work.h"

#include <utility>

#include "kernels/cuda/captured.h"

namespace kvasir {

void DeferredWork::add(const std::vector<uint32_t>& form, bool comes_again,
                       std::function<void()> work) {
  form_.push_back(static_cast<uint32_t>(form.size()));
  form_.insert(form_.end(), form.begin(), form.end());
  comes_again_ = comes_again_ && comes_again;
  work_.push_back(std::move(work));
}

void DeferredWork::give() {
  if (work_.empty()) return;
  const auto work = std::exchange(work_, {});
  const auto form = std::exchange(form_, {});
  if (std::exchange(comes_again_, true)) return cuda::launch_graph(graph_of(form, work), stream_);
  for (const auto& some : work) some();
}

cuda::Graph DeferredWork::graph_of(const std::vector<uint32_t>& form,
                                   const std::vector<std::function<void()>>& work) {
  if (const auto found = graphs_.find(form); found != graphs_.end()) return found->second;
  if (graphs_.size() == kMostGraphs) forget_graphs();
  return graphs_[form] = cuda::captured(stream_, [&] {
           for (const auto& some : work) some();
         });
}

void DeferredWork::forget_graphs() noexcept {
  try {
    cuda::wait(stream_);
  } catch (const cuda::Error&) {  // the next call says so
  }
  for (const auto& [form, graph] : graphs_) cuda::destroy_graph(graph);
  graphs_.clear();
}

}  // namespace kvasir
