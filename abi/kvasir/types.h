/* Element types, memory kinds, tensor views, selections, slabs, leases: the shared nouns.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_TYPES_H
#define KVASIR_TYPES_H

#include <kvasir/status.h>

/* Element types. A set of them is a 64-bit mask of 1 << dtype. */
#define KVASIR_DTYPE_F32 1u
#define KVASIR_DTYPE_F16 2u
#define KVASIR_DTYPE_BF16 3u
/* Groups of 32 along a vector, as GGUF has them: an f16 scale, then the steps.
 * Q8_0: 32 int8, x[i] = scale * q[i]; 34 bytes.
 * Q4_0: 16 bytes, x[i] and x[16 + i] = scale * (low, high nibble of q[i] - 8); 18 bytes. */
#define KVASIR_DTYPE_Q8_0 4u
#define KVASIR_DTYPE_Q4_0 5u
#define KVASIR_DTYPE_FP8_E4M3 6u /* OCP: exponent bias 7, at most 448, no infinity */
/* Of views only, never of K and V. */
#define KVASIR_DTYPE_U32 16u
#define KVASIR_DTYPE_U8 17u /* bytes */
#define KVASIR_DTYPE_BIT(dtype) (UINT64_C(1) << (dtype))

/* Kinds of memory. Only HOST and PINNED are read and written by their address. Numbers that a
 * plugin reads or fills (q, x, q_pos, scores, o, lse, mass) are views, which say where they lie.
 * Lists (sequences, ranges, items and their weights, offsets, indices, positions of keys, leases,
 * selections) are HOST memory always: a plugin on a device takes them along. A set of kinds is a
 * mask of KVASIR_MEM_BIT(kind); 0 = HOST only, and who names HOST takes PINNED too. */
#define KVASIR_MEM_HOST 0u   /* pageable memory of this machine */
#define KVASIR_MEM_PINNED 1u /* page-locked */
#define KVASIR_MEM_DEVICE 2u
#define KVASIR_MEM_BIT(kind) (1u << (kind))

#define KVASIR_UNIT_BLOCK 0u
#define KVASIR_UNIT_TOKEN 1u

#define KVASIR_ALL_HEADS 0xffffffffu

/* A strided tensor. Strides are in bytes. The pointee's lifetime is said where a view is used. A
 * view lies inside other structs: it never grows. rank = 0 and data = null: not given. */
typedef struct kvasir_view {
  uint32_t struct_size;
  uint32_t dtype;
  void* data;
  uint32_t mem_kind;
  int32_t device; /* of KVASIR_MEM_DEVICE and _PINNED; else 0 */
  uint32_t rank;  /* <= 4; the last dimension is contiguous */
  uint32_t flags; /* 0 */
  uint64_t shape[4];
  int64_t stride[4];
} kvasir_view;

/* How the blocks of a storage are laid out; leases name one by its index in geometry.formats.
 * Strides are multiples of the element type's alignment: F32 4 bytes; F16, BF16, Q8_0 and Q4_0 2
 * (scales are f16); FP8 1. The pointers of a lease keep to it, too.
 * Token t of kv head h of a lease that covers all heads: k + h * k_head_stride + t *
 * k_token_stride, elements contiguous, quantised ones in groups along the vector; V likewise, never
 * transposed. A lease of one head starts at that head: add no head stride. */
typedef struct kvasir_kv_format {
  uint32_t struct_size;
  uint32_t dtype_k;
  uint32_t dtype_v;
  uint32_t mem_kind;       /* KVASIR_MEM_* of k and v; one format per kind of memory. Of one that is
                              neither HOST nor PINNED the storage itself moves the tokens: storage.h */
  uint64_t k_token_stride; /* bytes */
  uint64_t v_token_stride;
  uint64_t k_head_stride;
  uint64_t v_head_stride;
  int32_t device; /* of KVASIR_MEM_DEVICE; else 0 */
  uint32_t reserved;
} kvasir_kv_format;

#define KVASIR_LEASE_RESIDENT 0u
#define KVASIR_LEASE_NOT_RESIDENT 1u /* prefetch it; k and v are null */
#define KVASIR_LEASE_FAILED 2u       /* lost or corrupt; k and v are null */
/* Since 0.2, only where the key said `needed`: those tokens are there. The bytes of others are
 * unspecified and may change while leased: nobody reads them. */
#define KVASIR_LEASE_PARTIAL 3u

/* Zero-copy access to one block of one layer. While leased, bytes neither move nor change, except
 * tokens that the holder of a WRITE lease writes. The storage counts its leases: a block may be
 * leased for reading any number of times, for writing once at a time, and each lease ends with one
 * release() of its id. token_pos, pos_begin and n_tokens are the host's, whether the block is open
 * or sealed: what a storage writes there is not read. */
typedef struct kvasir_lease {
  uint64_t lease;  /* for release(); 0 = nothing to release */
  uint64_t handle; /* for later keys; 0 = none */
  void* k;
  void* v;
  const uint32_t* token_pos; /* position per token, or null: pos_begin + t */
  uint32_t pos_begin;
  uint32_t n_tokens; /* valid tokens */
  uint32_t kv_head;  /* KVASIR_ALL_HEADS or the one head it covers */
  uint32_t format;   /* index into geometry.formats */
  uint32_t tier;     /* the storage's own numbering, 0 = fastest (FETCH: where it was before) */
  uint32_t state;    /* KVASIR_LEASE_* */
} kvasir_lease;

/* Lists of indices, compressed: what a selector returns, and what it may choose from.
 * Order of lists: sequence outermost, then head (1, n_kv_heads or n_q_heads by scope), then query
 * block where query_block is not 0. Indices are logical for the life of the sequence: token
 * position, or position / block_size; ascending, unique, inside the candidate range of the
 * sequence. */
#define KVASIR_SCOPE_SEQUENCE 0u /* one list for all heads */
#define KVASIR_SCOPE_KV_HEAD 1u
#define KVASIR_SCOPE_Q_HEAD 2u /* the host makes the union per kv head, with weights */

#define KVASIR_LIST_LISTED 0u
#define KVASIR_LIST_ALL 1u      /* all candidates: the queries attend densely; lists nothing */
#define KVASIR_LIST_NONE 2u     /* none */
#define KVASIR_LIST_FALLBACK 3u /* dense for this list's queries, counted as a fallback */

#define KVASIR_SELECTION_DROP 1u  /* evict_plan only: lists name what to lose, not to keep */
#define KVASIR_SELECTION_FINAL 2u /* speculate only: no select() of it for that layer and step */
#define KVASIR_SELECTION_CONTRIBUTES 4u /* select only: o and lse are filled */

#define KVASIR_ACTION_RESTRICT 1u /* reachable until the next prompt; nothing moves */
#define KVASIR_ACTION_EVICT 2u    /* never attended again in this sequence */

typedef struct kvasir_selection {
  uint32_t struct_size;
  uint32_t unit;          /* KVASIR_UNIT_*, preset by the host to limits.unit */
  uint32_t scope;         /* preset to limits.scope (evict_plan: KVASIR_SCOPE_KV_HEAD at the
                             finest); the callee may coarsen it */
  uint32_t flags;         /* KVASIR_SELECTION_* */
  uint32_t action;        /* evict_plan: KVASIR_ACTION_*, preset to limits.action */
  uint32_t weight_width;  /* 0 = no weights, 1 = one per index, group_size = one per query head */
  uint32_t reuse_steps;   /* how many further steps the host may keep it; 0 = this step only */
  uint32_t n_lists;       /* written by the callee: sequences x heads of its scope, x query blocks
                             with prefill.query_block */
  uint64_t capacity;      /* of index, in elements; log_weight has capacity * group_size */
  uint64_t needed;        /* written with KVASIR_ERR_CAPACITY: elements needed in index */
  uint64_t* list_offsets; /* [n_lists + 1], space for the preset scope; written by the callee */
  uint32_t* list_flags;   /* [n_lists], KVASIR_LIST_*; zeroed by the host */
  uint32_t* index;        /* [capacity] */
  float* log_weight;      /* natural log, added to the scaled logit; -inf = not for that head */
  uint64_t bytes_read;    /* preset to 0; select() and speculate() write how many bytes of what is
                             kept per cached token (K, V, records, own tables) they read to choose;
                             what the query heads of a group read together counts once */
  uint32_t query_block; /* select() in prefill: preset to limits.prefill.query_block; a callee that
                           writes 0 returns one list per head for all queries. Else 0 */
  uint32_t reserved;
  /* select() with KVASIR_NEED_CONTRIBUTION, else not given: attention over candidates that the
   * callee stands in for and does not list, per query of the q view: values weighted by their
   * softmax, and the log-sum-exp of their scaled logits. HOST memory; lse preset to -inf, which
   * says no contribution, o to 0. The host merges them with what was attended. A selection that
   * contributes serves this step and layer only: it is not reused, and layers that follow this one
   * (layer_step) take its lists alone. */
  kvasir_view o;   /* f32 [queries][n_q_heads][v_dim], contiguous */
  kvasir_view lse; /* f32 [queries][n_q_heads], contiguous; finite or -inf */
} kvasir_selection;

/* Records of one layer, kept by the host, [sequence][page][kv_head][block in page][record_bytes]:
 * forks by copy on write, saves as bytes. Record of (seq, kv_head, block):
 *   pages[seq_pages[seq] + block / page_blocks]
 *     + (kv_head * page_blocks + block % page_blocks) * record_bytes
 * The page_bytes of all heads lie side by side behind the records of all of them, those of kv_head
 * part_offset + kv_head * page_bytes from where the page begins. open_pages as pages, with
 * open_bytes and no such bytes, for blocks that are not FINAL yet; null when open_bytes = 0. A null
 * page holds no record yet; pages that the call may write are never null. Zeroed when created. */
typedef struct kvasir_slab {
  uint32_t struct_size;
  uint32_t page_blocks;
  uint64_t record_bytes;
  uint64_t open_bytes;
  const uint64_t* seq_pages; /* [n_seqs + 1] */
  void* const* pages;
  void* const* open_pages;
  uint32_t mem_kind;    /* KVASIR_MEM_* of the pages: what layout.mem_kind asked for */
  uint32_t page_bytes;  /* Since 0.2. */
  uint64_t part_offset; /* Since 0.2. A multiple of 64. */
} kvasir_slab;

#endif
