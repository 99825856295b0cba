// DuoAttention (arXiv:2410.10819): retrieval heads see everything, streaming heads the first and
// the last tokens. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/streaming.h"

namespace kvasir::oracle::duoattention {

inline Indices attended(bool retrieval_head, uint32_t sink_tokens, uint32_t recent_tokens,
                        uint32_t n) {
  return retrieval_head ? range(0, n) : streaming::kept(sink_tokens, recent_tokens, n);
}

}  // namespace kvasir::oracle::duoattention
