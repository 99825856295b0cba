/* Plugin extension test.recording/1: what an attention backend was asked to attend to.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RECORDING_H
#define RECORDING_H

#include <kvasir/version.h>

#define RECORDING_EXTENSION "test.recording/1"

/* One row of one part: queries [q_begin, q_begin + n_q) of one sequence and kv head. */
typedef struct recorded_row {
  uint64_t seq;
  uint32_t part, kv_head, q_begin, n_q;
  uint32_t kv_len; /* of the sequence, this call included */
  uint32_t unit, dist_min, dist_max, weight_width;
  uint32_t n_tokens;
  uint32_t* token; /* [n_tokens] positions, in the order given, blocks spread out */
  uint32_t* item;  /* [n_tokens] where they stand: lease ordinal * block_size + t */
  float* weight;   /* [n_tokens][weight_width], or null */
} recorded_row;

typedef struct recorded_run {
  uint32_t layer, moment;
  uint32_t n_rows, n_parts;
  recorded_row* rows;
  uint64_t n_queries;
  float* q;     /* first part: [n_queries][n_q_heads][head_dim] */
  uint32_t n_k; /* sequences of the step */
  uint32_t reserved;
  float** k; /* per sequence [n_kv_heads][kv_len][head_dim]; zero where a block is not resident */
} recorded_run;

/* Belongs to the instance: lives as long as it does. */
typedef struct recording {
  uint32_t struct_size;
  uint32_t armed;   /* written by the test: 0 = nothing, 1 = rows, 2 = rows, queries and keys */
  uint32_t n_runs;  /* recorded so far */
  uint32_t n_calls; /* run() and mass(), recorded or not */
  recorded_run* runs;
  void* self;
  void (*clear)(void* self) KVASIR_NOEXCEPT; /* forgets the runs */
} recording;

#endif
