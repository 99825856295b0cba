/* AttentionBackend: the arithmetic over what was selected.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_ATTENTION_H
#define KVASIR_ATTENTION_H

#include <kvasir/step.h>

/* The queries are tokens of a prompt. The host may hand a prompt over in pieces of any size: o and
 * lse of a query depend on that query and the keys it sees, in item order, and not on how many
 * queries share the range or on keys behind those it sees. Without this flag a range holds decoded
 * tokens: the same rule, but o and lse may differ from those of a prompt's query by rounding. In
 * neither case do they depend on the other ranges of the call. (Mass sums over queries may round.)
 */
#define KVASIR_ATTN_RANGE_PREFILL 1u

/* One sequence and kv head: which queries attend to which items. */
typedef struct kvasir_attn_range {
  uint32_t kv_head;
  uint32_t q_begin; /* queries of the part's q view */
  uint32_t n_q;
  uint32_t flags;      /* KVASIR_ATTN_RANGE_* */
  uint64_t item_begin; /* into items; BLOCK unit without items: lease ordinals themselves */
  uint64_t item_end;
} kvasir_attn_range;

/* A set of keys disjoint from those of the other parts, with its own query rotation. The softmax is
 * joint over all parts. Query q sees key k iff pos(k) <= pos(q) and
 * dist_min <= pos(q) - pos(k) < dist_max. One memory kind per part. */
typedef struct kvasir_attn_part {
  uint32_t struct_size;
  uint32_t
      unit; /* BLOCK: item = lease ordinal; TOKEN: item = ordinal * block_size + t, ascending */
  uint32_t n_ranges;
  uint32_t range_size;
  const kvasir_attn_range* ranges; /* each (query, kv head) at most once per part */
  const kvasir_lease* leases;
  uint32_t n_leases;
  uint32_t lease_size;
  const uint32_t* items;   /* null (BLOCK only): item i is lease i */
  const float* log_weight; /* null, or [item][weight_width] */
  uint32_t weight_width;   /* 1, or group_size: one per query head, -inf = not for that head */
  uint32_t dist_min;
  uint32_t dist_max; /* UINT32_MAX = no limit */
  uint32_t reserved;
  kvasir_view q;     /* f32 [queries][n_q_heads][head_dim] */
  kvasir_view q_pos; /* u32 [queries]: true position of each */
} kvasir_attn_part;

#define KVASIR_ATTN_MASS_FOLLOWS 1u /* mass() will be called for the same input */

typedef struct kvasir_attn_in {
  uint32_t struct_size;
  uint32_t flags; /* KVASIR_ATTN_* */
  uint32_t n_parts;
  uint32_t part_size;
  const kvasir_attn_part* parts;
} kvasir_attn_in;

/* lse: natural log of the sum over exactly the keys seen, of exp(logit). o is normalised. Nothing
 * seen: o = 0, lse = -inf. Pairs (query, head) that no range names are left untouched. */
typedef struct kvasir_attn_out {
  uint32_t struct_size;
  uint32_t reserved;
  kvasir_view o;   /* f32 [queries][n_q_heads][v_dim], contiguous */
  kvasir_view lse; /* f32 [queries][n_q_heads], contiguous */
  uint64_t
      keys_skipped; /* preset to 0: keys that a range's items name and that run() left out for
                       all queries of the range by a choice of its own; summed over the ranges */
} kvasir_attn_out;

/* exp(logit - lse) per key, summed over the range's queries, for every range of every part in
 * order. Keys of a range are enumerated in item order, BLOCK items token by token. */
typedef struct kvasir_attn_mass {
  uint32_t struct_size;
  uint32_t width; /* 1: summed over the group; group_size: per query head, head fastest */
  const uint64_t* range_offsets; /* [ranges of all parts + 1], in keys */
  kvasir_view lse;               /* f32 [queries][n_q_heads], after the merge; contiguous */
  kvasir_view value;             /* f32 [keys][width], contiguous, overwritten */
} kvasir_attn_mass;

/* Sizes of the largest call, and what the backend needs for it. */
typedef struct kvasir_attn_shape {
  uint32_t struct_size;
  uint32_t max_queries;
  uint64_t max_keys; /* per range */
} kvasir_attn_shape;

typedef struct kvasir_attn_plan {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t scratch_bytes; /* over all workers, taken from kvasir.scratch/1 or its own */
} kvasir_attn_plan;

typedef struct kvasir_attention {
  kvasir_instance base;
  /* [control] after bind; again when the shape grows. */
  kvasir_status (*plan)(void* self, const kvasir_attn_shape* shape, kvasir_attn_plan* out,
                        kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] */
  kvasir_status (*run)(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                       kvasir_attn_out* out, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] (optional: KVASIR_PROVIDE_MASS) */
  kvasir_status (*mass)(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                        const kvasir_attn_mass* out, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_attention;

#endif
