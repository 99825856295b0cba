/* KVSelector: which blocks or tokens each kv head attends to; what to give up. Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_SELECTOR_H
#define KVASIR_SELECTOR_H

#include <kvasir/records.h>

/* In limits(): the number of units is not limited. 0 is a limit, too: none. */
#define KVASIR_NO_LIMIT UINT64_MAX

#define KVASIR_PLAN_AT_PROMPT_END 1u
#define KVASIR_PLAN_AT_CHUNK_END 2u
#define KVASIR_PLAN_AT_STEP_END 4u

#define KVASIR_POS_TRUE 0u     /* keys at the positions of their tokens */
#define KVASIR_POS_CONSTANT 1u /* unrotated K only: query at `constant`, keys at 0 */

/* In kvasir_prefill_wish: one slice per chunk. */
#define KVASIR_SLICE_CHUNK 0xffffffffu

/* One struct per ability, each for the functions it names. All lie inside kvasir_sel_limits and
 * never grow: a new ability is a new struct at its end. All zero: not wanted. */

/* evict_plan() */
typedef struct kvasir_plan_wish {
  uint32_t at;           /* KVASIR_PLAN_AT_* set: when it is asked */
  uint32_t every_tokens; /* STEP_END: only every n-th decoded token; 0 = each */
  uint32_t action;       /* default KVASIR_ACTION_* of its plans */
  uint32_t reserved;
} kvasir_plan_wish;

/* speculate() */
typedef struct kvasir_speculation {
  uint32_t layers_ahead; /* 0 = not called */
  uint32_t reserved;
} kvasir_speculation;

/* select() in prefill, and prefill() */
typedef struct kvasir_prefill_wish {
  uint32_t slice_tokens; /* select and attend per slice of so many tokens of the chunk, or
                            KVASIR_SLICE_CHUNK; 0 = prompts are attended densely */
  uint32_t last_queries; /* prefill() is given so many of the prompt's last ones, or
                            KVASIR_ALL_QUERIES; 0 = not called */
  uint32_t query_block;  /* queries per list in a slice, counted from the slice's first; the last
                            block may be shorter. 1 = a list per query; 0 = one list for all
                            queries. Not with KVASIR_NEED_SCORES, nor beside another selector */
  uint32_t dense_last_queries; /* the last n queries of the prompt attend to everything, select()
                                  is not asked for them; KVASIR_ALL_QUERIES: none of a prompt */
} kvasir_prefill_wish;

/* Of sink and candidates, where they are attended. */
typedef struct kvasir_positions {
  uint32_t mode;     /* KVASIR_POS_* */
  uint32_t constant; /* position of the query with KVASIR_POS_CONSTANT */
} kvasir_positions;

/* Of the scores only the max_units highest of each list are looked at: kvasir_score_in.n_best. */
#define KVASIR_LIMITS_BEST_SCORES 1u

/* Filled by limits(). The host zeroes it first and sets max_units to KVASIR_NO_LIMIT, so that a
 * selector which only selects says unit and scope. */
typedef struct kvasir_sel_limits {
  uint32_t struct_size;
  uint32_t unit;           /* KVASIR_UNIT_* of its lists and candidate ranges */
  uint32_t scope;          /* finest KVASIR_SCOPE_* it returns */
  uint32_t flags;          /* KVASIR_LIMITS_* */
  uint64_t max_units;      /* most candidates selected per list, or kept by its plans: 0 = none,
                              KVASIR_NO_LIMIT. Where all candidates fit, select() is not called */
  uint64_t expected_units; /* for plans only, with KVASIR_NO_LIMIT: the most selected per list at
                              max_context, of lists that differ the mean; 0 = not known */
  uint64_t dense_below_tokens; /* kv_len below which attending everything is better; the user may
                                  ask for more (cache.dense_below_tokens) */
  kvasir_mass_wish mass;       /* for observe() */
  kvasir_plan_wish plans;
  kvasir_speculation speculation;
  kvasir_prefill_wish prefill;
  kvasir_positions positions;
  kvasir_memory memory;
} kvasir_sel_limits;

/* What select(), speculate() and prefill() see. Undeclared needs are null / zero-sized. The queries
 * of q and x are numbered by step->seqs[].q_begin and n_q. q has the rotation the candidates will
 * be attended with: its dot products are their logits. */
typedef struct kvasir_sel_in {
  uint32_t struct_size;
  uint32_t n_score_heads;        /* n_kv_heads, or 1 when selection is shared; 0 = no scores */
  kvasir_view q;                 /* f32 [queries][n_q_heads][head_dim] */
  kvasir_view x;                 /* f32 [queries][d_model], KVASIR_NEED_INPUT; not in prefill() */
  kvasir_view scores;            /* f32 [score_offsets[last]], reduced over the group;
                                    KVASIR_NEED_SCORES */
  const uint64_t* score_offsets; /* [n_seqs * n_score_heads + 1], heads of a sequence together;
                                    candidate order */
  const kvasir_lease* leases;    /* KVASIR_NEED_KEYS: all heads, blocks [0, n) of each sequence, the
                                    open one included; check state */
  const uint64_t* lease_offsets; /* [n_seqs + 1] */
  const uint32_t* list_end;      /* with prefill.query_block: where the candidates of each query
                                    block end, sequence by sequence; unit_end is that of the last
                                    block. The host attends to what lies behind the end, as far as
                                    a query may see it, and leaves out what a list names there.
                                    Else null */
} kvasir_sel_in;

typedef struct kvasir_selector {
  kvasir_instance base;
  /* [control] after bind. */
  kvasir_status (*limits)(void* self, kvasir_sel_limits* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] (optional) own per-block records, kept by the host. With update(). record_bytes = 0:
   * update() is wanted, a slab is not. */
  kvasir_status (*layout)(void* self, kvasir_layout* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) n items, item_size apart: build, append, block full, prompt end. */
  kvasir_status (*update)(void* self, const kvasir_step* step, const kvasir_update_item* items,
                          uint32_t n, uint32_t item_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) APPENDED: queries of the prompt's last tokens, as
   * limits.prefill.last_queries asks. */
  kvasir_status (*prefill)(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                           kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) INPUT of step->layer, sequences that decode: x of that layer and the query
   * the host computed from it for target_layer, whose slab and candidates step carries. kv_len
   * counts the current token, which the target layer does not hold yet. The result may be wrong: it
   * feeds prefetch, and replaces select() of the target only when marked FINAL. */
  kvasir_status (*speculate)(void* self, const kvasir_step* step, uint32_t target_layer,
                             const kvasir_sel_in* in, kvasir_selection* out,
                             kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional: null = all live candidates) APPENDED. */
  kvasir_status (*select)(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                          kvasir_selection* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) ATTENDED; only collects. */
  kvasir_status (*observe)(void* self, const kvasir_step* step, const kvasir_mass* mass,
                           kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional) STEP_END, per layer in ascending order; sequences of one phase per call: what
   * to keep (or, with DROP, to lose) among the candidates. LIST_ALL and LIST_NONE speak of the
   * lists' list: with DROP LIST_NONE loses nothing, else LIST_ALL keeps everything. No weights. */
  kvasir_status (*evict_plan)(void* self, const kvasir_step* step, kvasir_selection* out,
                              kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_selector;

#endif
