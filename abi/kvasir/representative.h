/* Representative: how a block of keys is summarised, and how a query scores the summaries.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_REPRESENTATIVE_H
#define KVASIR_REPRESENTATIVE_H

#include <kvasir/step.h>

#define KVASIR_LAYOUT_CONTENT_ONLY 1u    /* records depend on the block's K and V alone */
#define KVASIR_LAYOUT_WANT_PROMPT_END 2u /* update() items with KVASIR_ITEM_PROMPT_END */
#define KVASIR_LAYOUT_SEALED_ONLY 4u     /* no update() before a block is full */
#define KVASIR_LAYOUT_WANT_FINAL 8u      /* update() items with KVASIR_ITEM_FINAL */
#define KVASIR_LAYOUT_PROMPT_END_ALL 16u /* PROMPT_END items of window and open block, too */
/* block_size equal slices, one per token: truncation clears those cut off and keeps the others,
 * where any other record of a cut block is cleared and fed again. */
#define KVASIR_LAYOUT_PER_TOKEN 32u

/* Filled by layout(); zeroed by the host first. */
typedef struct kvasir_layout {
  uint32_t struct_size;
  uint32_t flags;             /* KVASIR_LAYOUT_* */
  uint64_t record_bytes;      /* per (layer, kv head, block); a multiple of 4, records are 64-byte
                                 aligned when it is a multiple of 64 */
  uint64_t open_bytes;        /* additional, until the block is FINAL; same alignment */
  uint64_t format;            /* changes when records of an older build cannot be read */
  uint32_t mass_at;           /* KVASIR_MASS_AT_*: items carry mass per token and query head */
  uint32_t mass_part;         /* KVASIR_PART_ALL (0) or KVASIR_PART_WINDOW (1), see selector.h */
  uint32_t mass_last_queries; /* of the prompt; UINT32_MAX = all */
  uint32_t refresh_tokens;    /* the PROMPT_END items again, at D4 of every n-th decoded token; 0 =
                                 never */
  uint64_t state_bytes;      /* of a representative's own memory, as in kvasir_sel_limits; what a */
  uint64_t state_peak_bytes; /* selector keeps, its limits say */
  uint32_t mem_kind; /* KVASIR_MEM_HOST or _DEVICE: where its records shall lie. On a device the
                        storage's kvasir.device-memory/1 allocates, copies and clears them */
  uint32_t reserved;
} kvasir_layout;

/* Row r of q belongs to step->rows[r]: for a slice the host takes the mean of its queries first. */
typedef struct kvasir_score_in {
  uint32_t struct_size;
  uint32_t reserved;
  kvasir_view q; /* f32 [n_rows][n_q_heads][head_dim] */
} kvasir_score_in;

/* value[offsets[row * n_q_heads + q_head] + i]: score of candidate i of that row, unscaled. f32
 * [offsets[n_rows * n_q_heads]], contiguous. */
typedef struct kvasir_score_out {
  uint32_t struct_size;
  uint32_t reserved;
  const uint64_t* offsets; /* [n_rows * n_q_heads + 1] */
  kvasir_view value;
} kvasir_score_out;

typedef struct kvasir_representative {
  kvasir_instance base;
  kvasir_status (*layout)(void* self, kvasir_layout* out,
                          kvasir_err* err) KVASIR_NOEXCEPT; /* [control] */
  /* [step] n items, item_size apart; feeding a block in pieces equals feeding it at once. */
  kvasir_status (*update)(void* self, const kvasir_step* step, const kvasir_update_item* items,
                          uint32_t n, uint32_t item_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] every row and candidate block of the layer. */
  kvasir_status (*score)(void* self, const kvasir_step* step, const kvasir_score_in* in,
                         kvasir_score_out* out, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_representative;

#endif
