// Summaries of blocks of keys on the device: per-channel minimum and maximum, or mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// What a record holds.
enum class RecordKind : uint32_t {
  kMinMax = 0,  // [2][head_dim]: minima, then maxima (Quest, arXiv:2406.10774)
  kMean = 1,    // [head_dim]
};

// The keys of one kv head in one block, and where their record goes.
struct RecordBlock {
  uint64_t k;               // the first key
  uint64_t k_token_stride;  // bytes
  uint64_t record;          // written; aligned to its element
  uint32_t n_tokens;        // at least 1
  KvType type;              // of its keys, never kMixed
};

struct RecordBuild {
  uint64_t blocks;  // RecordBlock [n_blocks]
  uint32_t n_blocks, head_dim;
  KvType key_type;  // of all blocks, or kMixed
  RecordKind kind;
  KvType record_type;  // kF32 or kF16
};

// Writes every record; q8_0 and q4_0 keys: head_dim is a multiple of 32. The numbers are those of
// kernels/representative.h, whose update_min_max() and store_mean() make the same records of keys
// that are no NaN:
//   minmax  f16 is rounded outwards and saturates at +-65504, so that score_min_max() bounds q.k of
//           every key that f16 can hold. A NaN is passed over
//   mean    sum_t k[t] / n_tokens, f32 sums in the order of the tokens, rounded to nearest; what
//           f16 cannot hold becomes infinite
//
// Launch: a thread per record and 8 channels walks the block's keys, four 16-byte loads of f16 on
// their way; neighbouring threads read neighbouring bytes. Bound by memory: K of the blocks is
// read once. Queued in the stream.
void build_records(const RecordBuild& call, Stream stream);

}  // namespace kvasir::cuda
