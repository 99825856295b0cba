/* The step batch: what every step call of every kind is told about the moment.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_STEP_H
#define KVASIR_STEP_H

#include <kvasir/instance.h>

/* When, inside a step, a function is called. Phases are apart from it: one call may carry sequences
 * that read a prompt and sequences that decode. */
#define KVASIR_MOMENT_INPUT 1u    /* the layer's input is normed, nothing is projected yet */
#define KVASIR_MOMENT_APPENDED 2u /* K and V of the step are stored, attention has not run */
#define KVASIR_MOMENT_ATTENDED 3u /* attention of the layer has run */
#define KVASIR_MOMENT_PROMPT_END \
  4u /* after ATTENDED of a prompt's last piece: its K and V of the layer are complete */
#define KVASIR_MOMENT_STEP_END 5u      /* the last layer has run; layers in ascending order */
#define KVASIR_MOMENT_BETWEEN_STEPS 6u /* no step runs: blocks are fed again, say after a cut */

#define KVASIR_PHASE_NONE 0u    /* BETWEEN_STEPS only */
#define KVASIR_PHASE_PREFILL 1u /* a piece of a prompt */
#define KVASIR_PHASE_DECODE 2u  /* one token, generated or given, behind the prompt */

/* Flags of a sequence of the step. */
#define KVASIR_STEP_FIRST_PIECE 1u /* of the prompt: kv_len - n_q == prompt_begin */
#define KVASIR_STEP_LAST_PIECE 2u  /* of the prompt: kv_len == prompt_end */
#define KVASIR_STEP_FORCED 4u      /* token_step said reuse, but the list had to be made anew */

/* One sequence of the step. */
typedef struct kvasir_step_seq {
  uint64_t id;
  uint32_t q_begin; /* its first query in the query view of this call */
  uint32_t n_q;     /* its queries; 0 when the call has no query view */
  uint32_t kv_len;  /* tokens cached, those of this step included (of a slice: up to its end); query
                       i is at kv_len - n_q + i */
  uint32_t prompt_begin; /* of the latest prompt */
  uint32_t prompt_end;   /* known from its first piece on */
  uint32_t unit_begin; /* candidate range in the callee's units; sink, window and open block lie */
  uint32_t unit_end;   /* outside it */
  uint32_t phase;      /* KVASIR_PHASE_* */
  uint32_t flags;      /* KVASIR_STEP_* */
  uint32_t reserved;
} kvasir_step_seq;

typedef struct kvasir_step { /* step lifetime */
  uint32_t struct_size;
  uint32_t moment; /* KVASIR_MOMENT_* */
  uint32_t reserved;
  uint32_t layer;
  uint32_t n_seqs;
  uint32_t seq_size;
  const kvasir_step_seq* seqs;
  /* Null: the whole range of each sequence. Else lists in the callee's unit, of scope SEQUENCE or
   * KV_HEAD but never finer than limits.scope, all LISTED, without weights; scores follow this
   * order, results are a subset. */
  const kvasir_selection* candidates;
  const kvasir_slab* slab; /* the callee's own, or null; writable in update() only, and in observe()
                              with KVASIR_LAYOUT_OBSERVE_WRITES */
} kvasir_step;

/* Attention mass, given to observe() and update(): one list per sequence and head (n_q_heads,
 * n_kv_heads or 1 by reduce), over everything attended, forced parts included. */
#define KVASIR_MASS_NONE 0u
#define KVASIR_MASS_LISTS 1u /* which indices were attended: value is not given */
#define KVASIR_MASS_BLOCK 2u /* sums per block */
#define KVASIR_MASS_TOKEN 3u

#define KVASIR_MASS_PER_Q_HEAD 0u
#define KVASIR_MASS_SUM_KV_HEAD 1u
#define KVASIR_MASS_SUM_ALL 2u

#define KVASIR_MASS_AT_PREFILL 1u
#define KVASIR_MASS_AT_DECODE 2u

typedef struct kvasir_mass {
  uint32_t struct_size;
  uint32_t unit; /* of index */
  uint32_t reduce;
  uint32_t n_lists;
  const uint32_t* n_queries;    /* [step->n_seqs] queries summed, per sequence */
  const uint64_t* list_offsets; /* [n_lists + 1] */
  const uint32_t* index;        /* ascending per list; null: 0, 1, 2 … */
  kvasir_view value; /* f32 [list_offsets[n_lists]]: sum over the queries of exp(logit - lse),
                        lse after the merge */
} kvasir_mass;

/* Touched blocks of one layer, all kv heads: the argument of update(). */
#define KVASIR_ITEM_NEW 1u    /* tokens [first_new, first_new + n_new) were appended */
#define KVASIR_ITEM_SEALED 2u /* the block is full */
#define KVASIR_ITEM_FINAL                                                                        \
  4u /* it has left the window: open_bytes go away after this call. Without open_bytes also when \
        it leaves again, after a cut brought it back */
#define KVASIR_ITEM_PROMPT_END                                                               \
  8u                         /* once per prompt for every candidate block, at PROMPT_END; at \
                                ATTENDED when layout.refresh_tokens asks */
#define KVASIR_ITEM_MASS 16u /* an increment of attention mass is attached */

typedef struct kvasir_update_item {
  uint32_t seq; /* index into step->seqs */
  uint32_t block;
  uint32_t first_new;        /* inside the block; the tokens before it are in the lease, too, unless
                                the layout says KVASIR_LAYOUT_READS_NEW */
  uint32_t n_new;            /* may be 0 */
  uint32_t n_tokens;         /* valid in the block: tokens [0, n_tokens) of the lease */
  uint32_t flags;            /* KVASIR_ITEM_* */
  const kvasir_lease* lease; /* K and V of all kv heads */
  const kvasir_view* mass;   /* f32 [n_q_heads][n_tokens], contiguous, or null */
} kvasir_update_item;

#endif
