// What a selector that chooses by scores is given: sequences, candidates, scores; and what is
// right. With KVASIR_TEST_ON_DEVICE the scores lie on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/view.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/step_data.h"
#ifdef KVASIR_TEST_ON_DEVICE
#include "tests/kernels/cuda/device_array.h"
#endif

namespace kvasir::test {

// The k first of a stable sort, best score first: equal scores stay in block order, or in the
// opposite one.
inline std::vector<uint32_t> expected(const std::vector<uint32_t>& blocks,
                                      const std::vector<float>& scores, size_t k,
                                      bool higher_wins = false) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (higher_wins) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) {
      return !std::isnan(scores[a]) && std::isnan(scores[b]);
    }
    return scores[a] > scores[b];
  });
  std::vector<uint32_t> out;
  for (size_t i = 0; i < std::min(k, order.size()); ++i) out.push_back(blocks[order[i]]);
  std::sort(out.begin(), out.end());
  return out;
}

// A step of several sequences, every list of candidates with its scores.
struct ScoreScene {
  std::vector<kvasir_step_seq> seqs;
  std::vector<std::vector<uint32_t>> lists;  // [sequence * n_heads + head]
  std::vector<float> scores;
  std::vector<uint64_t> score_offsets{0};
  SelectionBuffer candidates{KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 0, 0};
  kvasir_step step{};
  kvasir_sel_in in{};

  void add_seq(uint32_t begin, uint32_t end) {
    kvasir_step_seq seq{};
    seq.id = seqs.size() + 1;
    seq.unit_begin = begin;
    seq.unit_end = end;
    seqs.push_back(seq);
  }
  void add_list(const std::vector<uint32_t>& list, const std::vector<float>& score) {
    REQUIRE(list.size() == score.size());
    lists.push_back(list);
    scores.insert(scores.end(), score.begin(), score.end());
    score_offsets.push_back(scores.size());
  }
  // Hands over `passed` (one list per sequence, or per sequence and head) as step.candidates.
  void restrict_to(uint32_t scope, const std::vector<std::vector<uint32_t>>& passed) {
    candidates = SelectionBuffer(KVASIR_UNIT_BLOCK, scope, passed);
    step.candidates = &candidates.selection;
  }
  void finish() {
    step.struct_size = sizeof step;
    step.n_seqs = static_cast<uint32_t>(seqs.size());
    step.seq_size = sizeof(kvasir_step_seq);
    step.seqs = seqs.data();
    in.struct_size = sizeof in;
    in.n_score_heads = static_cast<uint32_t>(lists.size() / seqs.size());
    in.scores = sdk::host_view(scores.data(), {scores.size()});
#ifdef KVASIR_TEST_ON_DEVICE
    put_on_device();
#endif
    in.score_offsets = score_offsets.data();
  }

#ifdef KVASIR_TEST_ON_DEVICE
  std::unique_ptr<DeviceArray<float>> there;
  void put_on_device() {
    there = std::make_unique<DeviceArray<float>>(scores);
    in.scores.data = there->data();
    in.scores.mem_kind = KVASIR_MEM_DEVICE;
  }
#endif
};

}  // namespace kvasir::test
