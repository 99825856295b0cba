// Plugin extension test.recording/1: what an attention backend was asked to attend to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::test {

inline constexpr const char* kRecordingExtension = "test.recording/1";

// One range of one part: some queries of one sequence and kv head.
struct RecordedRange {
  uint64_t seq = 0;
  uint32_t kv_len = 0;  // of the sequence, this call included
  uint32_t kv_head = 0, n_q = 0, dist_min = 0, dist_max = 0, weight_width = 0;
  std::vector<uint32_t> token;  // positions, in the order given, blocks spread out
  std::vector<float> weight;    // [token.size()][weight_width]
};

struct RecordedRun {
  uint32_t layer = 0, moment = 0;
  bool in_prefill = false;  // of its first range
  std::vector<RecordedRange> ranges;
  std::vector<float> q;               // of the first part: [queries][n_q_heads][head_dim]
  std::vector<std::vector<float>> k;  // per sequence of the step [n_kv_heads][kv_len][head_dim];
                                      // zero where a block is not resident
};

// Belongs to the instance: lives as long as it does.
struct Recording {
  uint32_t armed = 0;  // written by the test: 0 = nothing, 1 = ranges, 2 = ranges, queries and keys
  std::vector<RecordedRun> runs;
};

}  // namespace kvasir::test
