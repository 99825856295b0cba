// DuoAttention (arXiv:2410.10819): retrieval heads see everything, streaming heads the first and
// the last tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/streaming.h"

namespace kvasir::oracle::duoattention {

inline Indices attended(bool retrieval_head, uint32_t sink_tokens, uint32_t recent_tokens,
                        uint32_t n) {
  return retrieval_head ? range(0, n) : streaming::kept(sink_tokens, recent_tokens, n);
}

// Which heads stream: the n_streaming with the smallest gates of the whole model, of equal ones
// those of the lower layer, there the lower head. gate[layer][kv_head].
inline std::vector<std::vector<bool>> streams(const Vectors& gate, size_t n_streaming) {
  std::vector<std::vector<bool>> out;
  for (size_t layer = 0; layer < gate.size(); ++layer) {
    out.emplace_back();
    for (size_t head = 0; head < gate[layer].size(); ++head) {
      size_t before = 0;  // heads that stream rather than this one
      for (size_t l = 0; l < gate.size(); ++l)
        for (size_t h = 0; h < gate[l].size(); ++h) {
          const bool first = l < layer || (l == layer && h < head);
          before += gate[l][h] < gate[layer][head] || (gate[l][h] == gate[layer][head] && first);
        }
      out.back().push_back(before < n_streaming);
    }
  }
  return out;
}

}  // namespace kvasir::oracle::duoattention
