// kvasir.cuda_block_topk passes the cases of block_topk with its scores on the device
// (block_topk_test.cc); here what only it does: scores in host memory, views that it refuses,
// device memory that it gives back, refusals before a run.
// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "tests/plugins/selector/score_scene.h"
#include "tests/support/plugin_instance.h"
#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/memory.h"
#endif

namespace {
using namespace kvasir;
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

const std::string kSelector = KVASIR_TEST_SELECTOR;

// One sequence, two kv heads, 300 blocks from block 2 on.
struct Scene : ScoreScene {
  explicit Scene(uint32_t n = 300) {
    std::mt19937 random(3);
    add_seq(2, 2 + n);
    for (uint32_t head = 0; head < 2; ++head) {
      std::vector<float> score(n);
      for (float& s : score) s = static_cast<float>(random() % 40) - 20.0f;
      add_list(range(2, 2 + n), score);
    }
    finish();
  }
  std::vector<uint32_t> best(uint32_t head, size_t k) const {
    return expected(lists[head],
                    {scores.begin() + static_cast<long>(score_offsets[head]),
                     scores.begin() + static_cast<long>(score_offsets[head + 1])},
                    k);
  }
};

kvasir_status select(Selector& selector, const Scene& scene, SelectionBuffer& out) {
  return selector->select(selector.self(), &scene.step, &scene.in, &out.selection, selector.err());
}

}  // namespace

TEST_SUITE("plugins/cuda/selector") {
  TEST_CASE("scores in host memory and on the device give one choice, call after call") {
    FakeHost host;
    Selector selector(host, kSelector, {{"budget_blocks", int64_t{9}}});
    selector.bind(small_geometry());
    for (const uint32_t n : {300u, 40u, 700u, 3u, 0u})  // buffers grow and are used again
      for (const bool on_device : {true, false}) {
        CAPTURE(n);
        Scene scene(n);
        if (!on_device) scene.in.scores = sdk::host_view(scene.scores.data(), {2 * uint64_t{n}});
        SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 18);
        REQUIRE_MESSAGE(select(selector, scene, out) == KVASIR_OK, selector.text());
        for (uint32_t head = 0; head < 2; ++head) CHECK(out.list(head) == scene.best(head, 9));
      }
  }

  TEST_CASE("scores of another type or shape are refused in a sentence") {
    FakeHost host;
    Selector selector(host, kSelector, {{"budget_blocks", int64_t{9}}});
    selector.bind(small_geometry());
    const auto refusal = [&](void (*spoil)(kvasir_view&)) {
      Scene scene;
      spoil(scene.in.scores);
      SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 18);
      return select(selector, scene, out) == KVASIR_ERR_INVALID ? selector.text() : "taken";
    };
    const std::string says = "select: the scores must be f32 [600], contiguous";
    CHECK(refusal([](kvasir_view& v) { v.dtype = KVASIR_DTYPE_U32; }) == says);
    CHECK(refusal([](kvasir_view& v) { v.shape[0] = 599; }) == says);
    CHECK(refusal([](kvasir_view& v) { v.rank = 2; }) == says);
    CHECK(refusal([](kvasir_view& v) { v.stride[0] = 8; }) == says);
    CHECK(refusal([](kvasir_view& v) { v.data = nullptr; }) ==
          "select: there must be one score per candidate and head");
  }

#ifdef KVASIR_CUDA_EMULATION
  TEST_CASE("it takes no more of the device than it said, and gives it back") {
    const uint64_t before = cuda::emulation::n_allocated();
    {
      FakeHost host;
      Selector selector(host, kSelector, {{"budget_blocks", int64_t{9}}});
      kvasir_geometry geometry = small_geometry();
      geometry.max_context = 300 * 16;
      geometry.max_sequences = 1;
      selector.bind(geometry);
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      CHECK(limits.memory.state_bytes == 2 * (2 * 32 + 9 * 4 + 300 * 4));
      Scene scene;
      SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 18);
      REQUIRE(select(selector, scene, out) == KVASIR_OK);
      CHECK(cuda::emulation::n_allocated() > before);
    }
    CHECK(cuda::emulation::n_allocated() == before);
  }
#endif
}
