/* Storage: where blocks live, in which type, what moves between tiers.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_STORAGE_H
#define KVASIR_STORAGE_H

#include <kvasir/step.h>

/* Names a block. The hash is opaque: of the content for sealed shared blocks, a nonce for private
 * ones. handle: what an earlier lease of the same block said, 0 = look it up by hash. */
typedef struct kvasir_block_key {
  uint64_t hash[2];
  uint32_t layer;
  uint32_t block;
  uint32_t kv_head;  /* KVASIR_ALL_HEADS, or one head: also a slice of a block written for all, in
                        acquire READ, prefetch and drop */
  uint32_t n_tokens; /* that hold data */
  uint64_t handle;
  /* Since 0.2, in acquire READ and prefetch; null elsewhere and for the whole block. Which tokens
   * of which kv heads are needed, valid during the call: bit h * block_size + t for token t of kv
   * head h, in (n_kv_heads * block_size + 63) / 64 words; of one head: bit t, in
   * (block_size + 63) / 64 words. Bits beyond the last token are zero. */
  const uint64_t* needed;
} kvasir_block_key;

/* READ: no I/O: resident, partial or marked; a key it never had: FAILED. With `needed` a storage
 * may answer for the whole block. A later READ of tokens that are not there, also while another
 * lease of the block is out: NOT_RESIDENT, prefetch them. What prefetches bring in parts adds up in
 * the storage until the block leaves memory as a whole; once all is there, leases are RESIDENT. */
#define KVASIR_ACQUIRE_READ 0u
#define KVASIR_ACQUIRE_WRITE 1u /* creates the block, or reopens a private one */
/* Only with KVASIR_PROVIDE_FETCH: as READ, but the call brings in what is not there and waits for
 * it; lease.tier says where a block was, or the slowest of its needed tokens, when the call began.
 * What its limits keep out, or what takes too long: NOT_RESIDENT, prefetch it. */
#define KVASIR_ACQUIRE_FETCH 2u

#define KVASIR_DROP_UNREF 0u  /* this holder is done; a tier may keep the bytes */
#define KVASIR_DROP_FORGET 1u /* and with the last holder, erase everywhere */

typedef struct kvasir_io_hint {
  uint32_t struct_size;
  uint32_t priority; /* 0 = speculative, 1 = needed by the coming layer, 2 = waited for */
} kvasir_io_hint;

/* Answer to "how much", before anything is allocated. */
typedef struct kvasir_storage_plan {
  uint32_t struct_size;
  uint32_t n_tiers;
  uint64_t block_bytes;    /* K and V of one block, one layer, all kv heads, in the fastest tier */
  uint64_t overhead_bytes; /* fixed: pools, tables, staging */
  uint64_t resident_bytes; /* most that blocks take in the fastest tier between steps; 0 = all of
                              them. What a step leases at once comes on top. */
} kvasir_storage_plan;

/* Tokens [first_token, first_token + n_tokens) of a leased block, of the heads that the lease
 * covers.
 */
typedef struct kvasir_token_span {
  const kvasir_lease* lease;
  uint32_t first_token; /* inside the block */
  uint32_t n_tokens;
} kvasir_token_span;

/* Tokens of one kv head, from block to block; the types of both are the same. */
typedef struct kvasir_token_copy {
  const kvasir_lease* from;
  const kvasir_lease* to;
  uint32_t from_token; /* inside their blocks */
  uint32_t to_token;
  uint32_t n_tokens;
  uint32_t kv_head; /* or KVASIR_ALL_HEADS, when both leases cover all */
} kvasir_token_copy;

/* The keys, leases and spans of a call may be of several sequences, layers and kv heads. */
typedef struct kvasir_storage {
  kvasir_instance base;
  /* [control] may be called before bind, after validate. */
  kvasir_status (*plan)(void* self, const kvasir_geometry* geometry, kvasir_storage_plan* out,
                        kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] after bind: the layouts its leases use. Writes *n_formats; CAPACITY when too small.
   * The host has filled struct_size of every element. */
  kvasir_status (*formats)(void* self, kvasir_kv_format* out, uint32_t capacity,
                           uint32_t* n_formats, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] one lease per key. WRITE on a new key allocates: KVASIR_AGAIN or OUT_OF_MEMORY when
   * full, then nothing was leased. */
  kvasir_status (*acquire)(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                           uint32_t mode, kvasir_lease* out, uint32_t lease_size,
                           kvasir_err* err) KVASIR_NOEXCEPT;
  void (*release)(void* self, const uint64_t* leases, uint32_t n) KVASIR_NOEXCEPT; /* [step] */
  /* [step] blocks are full: leases (WRITE) become `keys`, may be quantised once, may spill. The
   * leases stay valid for reading, under the same id, and are refreshed in place (handle, format
   * and pointers may change). A key that a sealed block has already says that the bytes are equal.
   * The storage then keeps both under one name, or gives the new bytes up for the old ones and
   * counts both holders: each seal is one holder, whom one drop() takes away. The handle says which
   * block a lease is on; a look-up without one finds either. A hash that is not the one a block was
   * written under says what the block holds; else it is a nonce. On an error none is sealed. */
  kvasir_status (*seal)(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                        kvasir_lease* leases, uint32_t lease_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] the holder no longer needs them; not while leased. Bytes go with the last holder. A slice
   * (one head of a block written for all) frees nothing by itself: the bytes go when every head was
   * dropped, or the whole block is. A slice dropped twice is ERR_INVALID. */
  kvasir_status (*drop)(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                        uint32_t mode, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] (optional: everything is always resident) asynchronous; takes the first *accepted keys.
   * With key.needed: at least those tokens; a storage may bring more, up to the whole block.
   * Exactly one report per ticket through kvasir.completion/1, also after cancel(); none when it
   * accepted nothing. The report may come before prefetch() returns. */
  kvasir_status (*prefetch)(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                            const kvasir_io_hint* hint, uint64_t ticket, uint32_t* accepted,
                            kvasir_err* err) KVASIR_NOEXCEPT;
  kvasir_status (*cancel)(void* self, uint64_t ticket,
                          kvasir_err* err) KVASIR_NOEXCEPT; /* [any] (optional) */
  /* The next four are for blocks whose memory is neither HOST nor PINNED: the host never touches
   * their bytes. (optional where all formats are HOST or PINNED, else all four.) The leases that
   * they write to are WRITE leases; what a call did is seen by later calls of any plugin.
   * [step] k f32 [tokens][n_kv_heads][head_dim] and v f32 [tokens][n_kv_heads][v_dim], contiguous,
   * into the spans one after another, converted to the types of their formats. */
  kvasir_status (*write_tokens)(void* self, const kvasir_token_span* spans, uint32_t n,
                                uint32_t span_size, const kvasir_view* k, const kvasir_view* v,
                                kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] as bytes, in the order of the copies. */
  kvasir_status (*copy_tokens)(void* self, const kvasir_token_copy* copies, uint32_t n,
                               uint32_t copy_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] tokens as bytes in HOST memory, [span][kv head][token], K before V;
   * n_bytes is exactly what that takes. load_tokens() gets back what save_tokens() gave, perhaps
   * damaged: its bytes are untrusted. */
  kvasir_status (*save_tokens)(void* self, const kvasir_token_span* spans, uint32_t n,
                               uint32_t span_size, void* bytes, uint64_t n_bytes,
                               kvasir_err* err) KVASIR_NOEXCEPT;
  kvasir_status (*load_tokens)(void* self, const kvasir_token_span* spans, uint32_t n,
                               uint32_t span_size, const void* bytes, uint64_t n_bytes,
                               kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_storage;

#endif
