// Tokens of blocks in device memory: written from f32, moved between blocks, gathered and
// scattered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// K and V of one token and kv head: where they lie in their block.
struct TokenRow {
  uint64_t k, v;
  uint64_t at;  // index of its f32 rows, or byte offset of its packed bytes
};

struct TokenRows {
  uint64_t rows;  // TokenRow [n_rows]
  uint32_t n_rows;
  uint32_t head_dim, v_dim;
  KvType k_type, v_type;  // not mixed
};

// Rows [at] of k [..][head_dim] and v [..][v_dim], f32, rounded to the types: to nearest, ties to
// even. Groups as GGUF's: q8_0 has scale = max |x| / 127, q4_0 scale = -x / 8 of the x with the
// largest |x| (the first of equals), both rounded to binary16 before they divide; a group that
// holds what is not finite, or whose scale binary16 cannot hold, reads back as NaN. fp8_e4m3: what
// is beyond 448 becomes 448, what is not finite NaN. Launch: a warp per row of K and per row of V.
// Queued in the stream.
void write_rows(const TokenRows& rows, uint64_t k, uint64_t v, Stream stream);

// K of row i at packed + rows[i].at, its V behind: packed from the blocks, or from there to the
// blocks. Rows lie at multiples of their elements' size, groups at even addresses, packed ones
// anywhere that suits them. Launch: a warp per row. Queued in the stream.
void pack_rows(const TokenRows& rows, uint64_t packed, Stream stream);
void unpack_rows(const TokenRows& rows, uint64_t packed, Stream stream);

// Tokens of kv head `kv_head`, or of all with UINT32_MAX, from block to block. Addresses are those
// of the first token, of kv head 0 or of the one head that the block has.
struct TokenMove {
  uint64_t from_k, from_v, to_k, to_v;
  uint32_t n_tokens, kv_head;
  uint32_t from_one_head, to_one_head;  // 1: no head stride is added
};
struct TokenMoves {
  uint64_t moves;  // TokenMove [n_moves]
  uint32_t n_moves, n_kv_heads;
  uint32_t k_row_bytes,
      v_row_bytes;  // also the distance of tokens; addresses of even ones are even
  uint64_t k_head_stride, v_head_stride;
};
// In the order of the list, token after token: a later move reads what an earlier one wrote.
// Launch: one block per kv head, for K and for V, whose threads each carry the same bytes of every
// row. Queued in the stream.
void move_tokens(const TokenMoves& moves, Stream stream);

}  // namespace kvasir::cuda
