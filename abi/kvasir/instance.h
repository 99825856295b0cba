/* Geometry of a run and the header every instance of every kind begins with.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_INSTANCE_H
#define KVASIR_INSTANCE_H

#include <kvasir/entry.h>

#define KVASIR_K_ROTATED 0u
#define KVASIR_K_UNROTATED 1u

#define KVASIR_WINDOW_ROLLING 0u /* the last window_tokens */
#define KVASIR_WINDOW_PROMPT 1u  /* starts at prompt end - window_tokens and grows */

#define KVASIR_REDUCE_SUM 0u
#define KVASIR_REDUCE_MEAN 1u
#define KVASIR_REDUCE_MAX 2u
#define KVASIR_REDUCE_SOFTMAX_SUM 3u

/* What a plugin may know about the run; instance lifetime. Never the host's internals. */
typedef struct kvasir_geometry {
  uint32_t struct_size;
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads; /* divides n_q_heads; query head h uses kv head h / group_size */
  uint32_t head_dim;   /* of Q and K */
  uint32_t v_dim;
  uint32_t block_size;  /* tokens */
  uint32_t max_context; /* tokens per sequence */
  uint32_t max_sequences;
  uint32_t max_queries; /* queries of one step; chunk_size or max_sequences may be fewer */
  uint32_t sink_tokens;
  uint32_t window_tokens;
  uint32_t window_mode;        /* KVASIR_WINDOW_* */
  uint32_t k_state;            /* KVASIR_K_* */
  uint32_t gqa_reduce;         /* KVASIR_REDUCE_*: the host applies it to scores */
  uint32_t head_select_shared; /* 1: scores are reduced over all heads, one list per sequence */
  uint32_t n_formats;          /* 0 while storage itself is bound */
  uint32_t format_size;
  const kvasir_kv_format* formats;
  const uint64_t* dense_layers; /* bit set, (n_layers + 63) / 64 words */
  float softmax_scale;          /* logit = softcap(softmax_scale * q.k) + log_weight */
  float softcap;                /* 0 = none; else softcap * tanh(x / softcap) */
  uint64_t seed;
  uint64_t model_hash; /* of all bytes of the model; 0 where no plugin's option names a file */
  /* Since 0.2. [n_layers] tokens that a query of the layer sees, its own included, by the model's
   * own shape; 0: all before it. Null: all layers see all. Layers that slide stand in dense_layers,
   * too: nothing is chosen in them. */
  const uint32_t* sliding_windows;
  /* Since 0.2. 0 where the user asks for f32, else 1, whatever the model's matrices are multiplied
   * in. 1: where a backend multiplies, it may round q, K, V and exp(logit - max) to bf16 in ranges
   * with KVASIR_ATTN_RANGE_PREFILL. In ranges without it, over K and V in q8_0 and q4_0, it may
   * round q to 8 bits, relative to the largest of a group's elements, and the product of
   * exp(logit - max) and a value's scale: to 8 bits, relative to the largest exp(logit - max) times
   * the largest scale of at most 32 keys, or to 16 bits, relative to those of at most 128 keys.
   * Sums are f32 or exact always, and 0 allows none of it. */
  uint32_t may_round;
  /* Since 0.2. Blocks per page of records (kvasir_slab); 0: not known. */
  uint32_t page_blocks;
} kvasir_geometry;

/* Every kind's table begins with this, so it never grows: new common functions come through
 * get_extension(). Legal order: create, validate, bind, { seq_*, step calls }, drain, destroy.
 * destroy may follow create at once. Slots marked (optional) may be null. All take `self`. */
typedef struct kvasir_instance {
  uint32_t struct_size; /* of the whole kind table */
  uint32_t kind;
  void* self;
  const kvasir_desc* desc;
  /* [control] (optional) cross-field check against the run, nothing allocated. */
  kvasir_status (*validate)(void* self, const kvasir_geometry* geometry,
                            kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] once; allocate for the run. */
  kvasir_status (*bind)(void* self, const kvasir_geometry* geometry,
                        kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] (optional, all four together) ids are the host's, never reused within a run. */
  kvasir_status (*seq_open)(void* self, const uint64_t* seqs, uint32_t n,
                            kvasir_err* err) KVASIR_NOEXCEPT;
  /* child[i] becomes a copy of parent[i] as it stands; slabs and blocks are the host's business. */
  kvasir_status (*seq_fork)(void* self, const uint64_t* parents, const uint64_t* children,
                            uint32_t n, kvasir_err* err) KVASIR_NOEXCEPT;
  /* Forget tokens at positions >= kv_len[i]. KVASIR_REBUILD: the host feeds update() again. */
  kvasir_status (*seq_truncate)(void* self, const uint64_t* seqs, const uint32_t* kv_len,
                                uint32_t n, kvasir_err* err) KVASIR_NOEXCEPT;
  void (*seq_close)(void* self, const uint64_t* seqs, uint32_t n) KVASIR_NOEXCEPT;
  /* [control] (optional) finish what is in flight before destroy; deadline in ms, 0 = at once. */
  kvasir_status (*drain)(void* self, uint64_t deadline_ms, kvasir_err* err) KVASIR_NOEXCEPT;
  void (*destroy)(void* self) KVASIR_NOEXCEPT; /* [control] cannot fail; joins own threads */
  const void* (*get_extension)(void* self, const char* id)KVASIR_NOEXCEPT; /* [any] (optional) */
} kvasir_instance;

#endif
