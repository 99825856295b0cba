/* Representative: how a block of keys is summarised, and how a query scores the summaries.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_REPRESENTATIVE_H
#define KVASIR_REPRESENTATIVE_H

#include <kvasir/records.h>

/* Only with KVASIR_PROVIDE_SUMMED_SCORES, where gqa_reduce is SUM or MEAN: a kv head gets one score
 * per candidate, the sum of those of its query heads. */
#define KVASIR_SCORE_SUMMED 0x1u

/* Query i of q belongs to step->seqs[i]: for a slice the host takes the mean of its queries first.
 */
typedef struct kvasir_score_in {
  uint32_t struct_size;
  uint32_t flags; /* KVASIR_SCORE_* */
  kvasir_view q;  /* f32 [n_seqs][n_q_heads][head_dim] */
  /* Since 0.2. 0: every score counts. Else the n_best-th highest of each list and those at or above
   * it do: for a lower one any finite number below it may stand, so that its record need not be
   * read. */
  uint32_t n_best;
  uint32_t reserved;
} kvasir_score_in;

/* value[offsets[seq * n_heads + head] + i]: score of candidate i of that sequence, unscaled. Heads
 * are query heads, with KVASIR_SCORE_SUMMED kv heads. f32 [offsets[n_seqs * n_heads]], contiguous.
 * Every one is written, and finite: NaN or an infinity is a fault. */
typedef struct kvasir_score_out {
  uint32_t struct_size;
  uint32_t reserved;
  const uint64_t* offsets; /* [n_seqs * n_heads + 1] */
  kvasir_view value;
  uint64_t bytes_read; /* Since 0.2. Set with n_best: bytes of records and of what belongs to pages
                          that were read; 0 = the records of all candidates */
} kvasir_score_out;

typedef struct kvasir_representative {
  kvasir_instance base;
  kvasir_status (*layout)(void* self, kvasir_layout* out,
                          kvasir_err* err) KVASIR_NOEXCEPT; /* [control] */
  /* [step] n items, item_size apart; feeding a block in pieces equals feeding it at once. */
  kvasir_status (*update)(void* self, const kvasir_step* step, const kvasir_update_item* items,
                          uint32_t n, uint32_t item_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] every sequence and candidate block of the layer. */
  kvasir_status (*score)(void* self, const kvasir_step* step, const kvasir_score_in* in,
                         kvasir_score_out* out, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_representative;

#endif
