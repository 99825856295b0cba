/* KVSelector: which blocks or tokens each kv head attends to; what to give up.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_SELECTOR_H
#define KVASIR_SELECTOR_H

#include <kvasir/step.h>

#define KVASIR_PLAN_AT_PROMPT_END 1u
#define KVASIR_PLAN_AT_CHUNK_END 2u
#define KVASIR_PLAN_AT_STEP_END 4u

#define KVASIR_POS_TRUE 0u     /* keys at the positions of their tokens */
#define KVASIR_POS_CONSTANT 1u /* unrotated K only: query at pos_const, keys at 0 */

#define KVASIR_PART_ALL 0u    /* mass over everything attended */
#define KVASIR_PART_WINDOW 1u /* mass over window and open block only */

#define KVASIR_LIMIT_OBSERVE_WRITES_SLAB 1u
#define KVASIR_LIMIT_WANT_PROMPT_END 2u /* same as the flag of its layout(): either will do */
#define KVASIR_LIMIT_PREFILL_SELECT 4u  /* select() in prefill too, per slice */
#define KVASIR_LIMIT_ZERO_UNITS 8u      /* max_units = 0 says none is selected, not "no limit" */

/* Filled by limits(); the host zeroes it first, and zero is the plain case. */
typedef struct kvasir_sel_limits {
  uint32_t struct_size;
  uint32_t unit;      /* KVASIR_UNIT_* of its rows and candidate ranges */
  uint32_t scope;     /* finest KVASIR_SCOPE_* it returns */
  uint32_t flags;     /* KVASIR_LIMIT_* */
  uint64_t max_units; /* most candidates selected per row, or kept by its plans; 0 = no limit, no
                         bypass by count (but see KVASIR_LIMIT_ZERO_UNITS) */
  uint64_t dense_below_tokens;   /* kv_len below which attending everything is better */
  uint32_t plan_at;              /* KVASIR_PLAN_AT_* set: when evict_plan is asked */
  uint32_t plan_every_tokens;    /* STEP_END: only every n-th decoded token; 0 = each */
  uint32_t action;               /* default KVASIR_ACTION_* of its plans */
  uint32_t speculate_ahead;      /* layers; 0 = no speculate() */
  uint32_t mass_at;              /* KVASIR_MASS_AT_* set; 0 = no observe() */
  uint32_t mass_level;           /* KVASIR_MASS_ROWS, _BLOCK, _TOKEN */
  uint32_t mass_reduce;          /* KVASIR_MASS_PER_Q_HEAD … */
  uint32_t mass_part;            /* KVASIR_PART_* */
  uint32_t mass_last_queries;    /* of the prompt; UINT32_MAX = all */
  uint32_t prefill_last_queries; /* of the prompt, for prefill(); UINT32_MAX = all */
  uint32_t prefill_slice_tokens; /* PREFILL_SELECT: select and attend per slice of the chunk */
  uint32_t pos_mode;             /* KVASIR_POS_* of sink and candidates */
  uint32_t pos_const;
  uint32_t reserved;
  /* For plans only; neither checked nor a reason to bypass. */
  uint64_t expected_units;   /* the most selected per row at max_context, where that is no limit for
                                all lengths or rows: of rows that differ the mean; 0 = max_units */
  uint64_t state_bytes;      /* memory of its own, records of the slab apart, that max_sequences
                                sequences of max_context tokens leave in all layers */
  uint64_t state_peak_bytes; /* the most it needs at once on the way there; 0 = as state_bytes */
} kvasir_sel_limits;

/* What select(), speculate() and prefill() see. Undeclared needs are null / zero-sized. The rows of
 * q and x are numbered by step->rows[].q_begin and n_q.
 * q has the rotation the candidates will be attended with: its dot products are their logits. */
typedef struct kvasir_sel_in {
  uint32_t struct_size;
  uint32_t n_score_heads;        /* n_kv_heads, or 1 when selection is shared; 0 = no scores */
  kvasir_view q;                 /* f32 [rows][n_q_heads][head_dim] */
  kvasir_view x;                 /* f32 [rows][d_model], KVASIR_NEED_INPUT, speculate() only */
  kvasir_view scores;            /* f32 [score_offsets[last]], reduced over the group;
                                    KVASIR_NEED_SCORES */
  const uint64_t* score_offsets; /* [n_rows * n_score_heads + 1], row-major; candidate order */
  const kvasir_lease* leases;    /* KVASIR_NEED_KEYS: all heads, blocks [0, n) of each row, the
                                    open one included; check state */
  const uint64_t* lease_offsets; /* [n_rows + 1] */
} kvasir_sel_in;

/* Bytes of the selector's own slab, same meaning as a representative's; see representative.h. */
struct kvasir_layout;

typedef struct kvasir_selector {
  kvasir_instance base;
  /* [control] after bind. */
  kvasir_status (*limits)(void* self, kvasir_sel_limits* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] (optional) own per-block records, kept by the host. With update(). record_bytes = 0:
   * update() is wanted, a slab is not. */
  kvasir_status (*layout)(void* self, struct kvasir_layout* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) n items, item_size apart: build, append, block full, prompt end. */
  kvasir_status (*update)(void* self, const kvasir_step* step, const kvasir_update_item* items,
                          uint32_t n, uint32_t item_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) P2: queries of the prompt's last tokens, as limits.prefill_last_queries asks.
   */
  kvasir_status (*prefill)(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                           kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) D1 of step->layer: x of that layer and the query the host computed from it
   * for target_layer, whose slab and candidates step carries. kv_len counts the current token,
   * which the target layer does not hold yet. The result may be wrong: it feeds prefetch, and
   * replaces select() of the target only when marked FINAL. */
  kvasir_status (*speculate)(void* self, const kvasir_step* step, uint32_t target_layer,
                             const kvasir_sel_in* in, kvasir_selection* out,
                             kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional: null = all live candidates) P2 or D2. */
  kvasir_status (*select)(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                          kvasir_selection* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) P3 or D4; only collects. */
  kvasir_status (*observe)(void* self, const kvasir_step* step, const kvasir_mass* mass,
                           kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) P5, D5 or chunk end, per layer in ascending order: what to keep (or, with
   * DROP, to lose) among the candidates. ROW_ALL and ROW_NONE speak of the rows' list: with DROP
   * ROW_NONE loses nothing, else ROW_ALL keeps everything. No weights. */
  kvasir_status (*evict_plan)(void* self, const kvasir_step* step, kvasir_selection* out,
                              kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_selector;

#endif
