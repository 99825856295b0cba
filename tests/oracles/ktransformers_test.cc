// KTransformers' preselection and dynamic representatives in the runtime against their oracles.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/ktransformers_followers.h"

namespace {

using namespace kvasir::oracle;
using namespace kvasir::oracle::ktransformers;

TEST_CASE("preselection keeps the blocks reachable that the last queries attend to") {
  Report report;
  Tally tally;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = long_window_case(i);
    Random random(i);
    const uint32_t w = random.one_of(std::vector<uint32_t>{1, 8, 32, 128});
    const bool shared = random.one_in(2), last = random.one_in(2);
    const uint32_t kernel = random.one_in(2) ? 0 : 1 + random.below(of.cache.block_size);
    duel(of,
         {"[selector]\nplugin = 'kvasir.preselect'\npreselect_block_count = " +
              std::to_string(of.budget_tokens / of.cache.block_size) + "\nwindow_size = " +
              std::to_string(w) + "\nhead_select_mode = '" + (shared ? "shared" : "separate") +
              "'\nunion_with_last_layer = " + (last ? "true" : "false") + "\n" +
              (kernel > 0 ? "kernel_size = " + std::to_string(kernel) + "\n" : ""),
          "", 1e-5},
         std::make_unique<Preselected>(of, w, kernel > 0 ? kernel : of.cache.block_size / 2, shared,
                                       last, &tally),
         report);
  }
  MESSAGE("preselect: ", tally.unsure, " of ", tally.plans, " plans hang on near-ties");
  CHECK(tally.unsure * 50 <= tally.plans);
  conclude(report, "preselect");
}

TEST_CASE("blocks are scored by their most attended keys") {
  Report report;
  const std::vector<std::string> combines = {"sum", "mean", "max"};
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = long_window_case(i);
    Random random(i);
    of.shape.one_zero_key_in = 0;  // equal votes
    const uint32_t w = random.one_of(std::vector<uint32_t>{1, 8, 32, 128});
    const uint32_t n_keys = 1 + random.below(5), combine = random.below(3);
    const bool shared = random.one_in(2);
    duel(of,
         {"[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = " +
              std::to_string(of.budget_tokens) +
              "\n[representative]\nplugin = 'kvasir.dynamic'\ndtype = 'f32'\n" +
              "representative_num = " + std::to_string(n_keys) + "\ncombine = '" +
              combines[combine] + "'\nlast_queries = " + std::to_string(w) + "\n",
          std::string("head_select_mode = '") + (shared ? "shared" : "separate") + "'\n", 1e-5},
         std::make_unique<Dynamic>(of, w, n_keys, static_cast<Combine>(combine), shared), report);
  }
  conclude(report, "dynamic");
}

}  // namespace
