// kvasir.block_topk on an NVIDIA GPU: the same blocks, chosen where the scores lie.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/top_k.h"
#include "plugins/shared/block_topk_options.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/device_lists.h"
#include "plugins/shared/device_work.h"

namespace {
using namespace kvasir;

class CudaBlockTopK : public sdk::BlockBudget {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.cuda_block_topk",
       .version = "0.1.0",
       .name = "CUDA block top-k",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Attends to the blocks whose representatives score highest, chosen on a GPU.",
       .options = sdk::kBlockTopKOptions,
       .needs = KVASIR_NEED_SCORES,
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  CudaBlockTopK(const sdk::Host&, const sdk::Options& options)
      : BlockBudget(options), higher_first_(sdk::higher_block_wins(options) ? 1 : 0) {}
  CudaBlockTopK(const CudaBlockTopK&) = delete;

  void validate(const kvasir_geometry& geometry) const {
    BlockBudget::validate(geometry);
    const std::string problem = cuda::device_problem();
    if (!problem.empty()) throw sdk::Error(KVASIR_ERR_UNSUPPORTED, problem);
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    BlockBudget::bind(geometry);
    const uint64_t n_blocks =
        (uint64_t{geometry.max_context} + geometry.block_size - 1) / geometry.block_size;
    const uint64_t n_lists = uint64_t{geometry.max_sequences} * n_heads();
    // Lists here and there, what is chosen, and scores if they come in host memory.
    state_bytes_ = n_lists * (2 * sizeof(cuda::TopKList) +
                              std::min<uint64_t>(max_blocks(), n_blocks) * sizeof(uint32_t) +
                              n_blocks * sizeof(float));
    work_.open();
  }

  void limits(kvasir_sel_limits& out) const {
    BlockBudget::limits(out);
    out.memory.state_bytes = state_bytes_;
  }

  const void* get_extension(const char* id) const {
    const std::string_view asked = id;
    if (asked == KVASIR_EXT_DEVICE_LISTS) return sdk::device_lists_table<CudaBlockTopK>();
    if (asked == KVASIR_EXT_STREAM_USER) return sdk::stream_user_table<CudaBlockTopK>();
    return nullptr;
  }
  void lend_stream(kvasir_stream_handle stream) { work_.lend(stream); }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    lay_out(step, in, out);
    const uint64_t n_chosen = out.list_offsets[n_lists(step)];
    if (n_chosen == 0) return;
    sdk::run_to_end(work_.stream(), [&] {
      choose(step, in, out, places_.ensure(n_chosen * sizeof(uint32_t), work_.stream()),
             [](uint32_t) { return 0u; });
      cuda::copy_to_host(out.index, places_.data(), n_chosen * sizeof(uint32_t), work_.stream());
    });
    for (uint32_t i = 0; i < n_lists(step); ++i) {
      const sdk::Candidates from = candidates(step, i);
      for (uint32_t& index : sdk::list_indices(out, i)) index = from[index];
    }
  }

  // kvasir.device-lists/1: they stay where they are chosen, and candidates follow each other.
  void select_there(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out,
                    const kvasir_view& index) {
    lay_out(step, in, out);
    const uint64_t n_chosen = out.list_offsets[n_lists(step)];
    if (step.raw().candidates || index.mem_kind != KVASIR_MEM_DEVICE ||
        index.dtype != KVASIR_DTYPE_U32 || index.rank != 1 || index.shape[0] < n_chosen)
      sdk::fail_invalid("select: whole ranges of candidates, and space for u32 [" +
                        std::to_string(n_chosen) + "] on the device, are needed");
    if (n_chosen == 0) return;
    work_.run([&] {
      choose(step, in, out, sdk::address(index.data),
             [&](uint32_t list) { return candidates(step, list)[0]; });
    });
  }

 private:
  // What the lists of `out` are to hold into u32 at `places`: of list i the places among its
  // candidates, and first(i) more.
  template <class First>
  void choose(const sdk::Step& step, const kvasir_sel_in& in, const kvasir_selection& out,
              uint64_t places, const First& first) {
    const uint32_t n = n_lists(step);
    const uint64_t scores = bring(in.scores, in.score_offsets[n]);
    lists_.clear();
    for (uint32_t i = 0; i < n; ++i) {
      const auto n_scores = static_cast<uint32_t>(in.score_offsets[i + 1] - in.score_offsets[i]);
      lists_.push_back({scores + in.score_offsets[i] * sizeof(float),
                        places + out.list_offsets[i] * sizeof(uint32_t), n_scores, max_blocks(),
                        higher_first_, n_scores == 0 ? 0 : first(i)});
    }
    const uint64_t bytes = lists_.size() * sizeof(cuda::TopKList);
    const uint64_t sent = sent_.ensure(bytes, work_.stream());
    cuda::copy_to_device(sent_.data(), lists_.data(), bytes, work_.stream());
    cuda::top_k(sent, n, work_.stream());
  }
  // The scores on the device.
  uint64_t bring(const kvasir_view& view, uint64_t n) {
    if (view.dtype != KVASIR_DTYPE_F32 || view.rank != 1 || view.shape[0] < n ||
        view.stride[0] != sizeof(float))
      sdk::fail_invalid("select: the scores must be f32 [" + std::to_string(n) + "], contiguous");
    if (view.mem_kind == KVASIR_MEM_DEVICE) return sdk::address(view.data);
    const float* const scores = sdk::floats(view, "the scores");
    const uint64_t there = scores_.ensure(n * sizeof(float), work_.stream());
    cuda::copy_to_device(scores_.data(), scores, n * sizeof(float), work_.stream());
    return there;
  }

  const uint32_t higher_first_;
  uint64_t state_bytes_ = 0;
  sdk::DeviceWork work_;
  std::vector<cuda::TopKList> lists_;
  sdk::DeviceBuffer sent_, places_, scores_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.cuda_block_topk", "0.1.0", CudaBlockTopK)
