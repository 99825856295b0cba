/* Blocks in host memory for the fake storages: f32, [kv_head][token][element], keyed by
 * (hash, layer, block, kv_head), found again by handle. Not thread-safe.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_BLOCKS_H
#define FAKE_BLOCKS_H

#include "tests/plugins/fakes/fake.h"

struct fake_block {
  kvasir_block_key key; /* kv_head: as it was written */
  float* bytes;         /* K of all its heads, then V; on the heap, so that a stale use is seen */
  uint64_t stamp;       /* of the last use */
  uint64_t dropped;     /* bit per kv head */
  uint32_t n_leases, state;
  uint32_t sealed, reserved;
};
struct fake_blocks {
  struct fake_block** at; /* [n], null = free; handle and lease id = index + 1 */
  uint32_t n;
  uint64_t clock;
};

static inline uint32_t fake_heads(const kvasir_geometry* g, const struct fake_block* b) {
  return b->key.kv_head == KVASIR_ALL_HEADS ? g->n_kv_heads : 1;
}
static inline size_t fake_head_floats(const kvasir_geometry* g) {
  return (size_t)g->block_size * (g->head_dim + g->v_dim);
}
static inline kvasir_kv_format fake_format(const kvasir_geometry* g) {
  return (kvasir_kv_format){.struct_size = sizeof(kvasir_kv_format),
                            .dtype_k = KVASIR_DTYPE_F32,
                            .dtype_v = KVASIR_DTYPE_F32,
                            .mem_kind = KVASIR_MEM_HOST,
                            .k_token_stride = g->head_dim * sizeof(float),
                            .v_token_stride = g->v_dim * sizeof(float),
                            .k_head_stride = (uint64_t)g->block_size * g->head_dim * sizeof(float),
                            .v_head_stride = (uint64_t)g->block_size * g->v_dim * sizeof(float)};
}
static inline const kvasir_block_key* fake_block_key(const kvasir_block_key* keys, uint32_t i,
                                                     uint32_t size) {
  return (const kvasir_block_key*)(const void*)((const char*)keys + (size_t)i * size);
}
static inline kvasir_lease* fake_lease_at(kvasir_lease* leases, uint32_t i, uint32_t size) {
  return (kvasir_lease*)(void*)((char*)leases + (size_t)i * size);
}

static inline int fake_names(const struct fake_block* b, const kvasir_block_key* key) {
  return b && b->key.hash[0] == key->hash[0] && b->key.hash[1] == key->hash[1] &&
         b->key.layer == key->layer && b->key.block == key->block &&
         (b->key.kv_head == key->kv_head || b->key.kv_head == KVASIR_ALL_HEADS);
}
/* Index of the block that holds this key (or, of all heads, its slice), or blocks->n. */
static inline uint32_t fake_find(const struct fake_blocks* blocks, const kvasir_block_key* key) {
  if (key->handle && key->handle <= blocks->n && fake_names(blocks->at[key->handle - 1], key))
    return (uint32_t)key->handle - 1;
  uint32_t i = 0;
  while (i < blocks->n && !fake_names(blocks->at[i], key)) ++i;
  return i;
}
static inline uint32_t fake_new_block(const kvasir_geometry* g, struct fake_blocks* blocks,
                                      const kvasir_block_key* key) {
  uint32_t i = 0;
  while (i < blocks->n && blocks->at[i]) ++i;
  if (i == blocks->n) {
    struct fake_block** grown = realloc(blocks->at, (i + 1) * sizeof *grown);
    if (grown == NULL) return UINT32_MAX;
    blocks->at = grown;
    blocks->at[blocks->n++] = NULL;
  }
  struct fake_block* b = calloc(1, sizeof *b);
  if (b == NULL) return UINT32_MAX;
  b->key = *key;
  b->bytes = calloc(fake_heads(g, b) * fake_head_floats(g), sizeof(float));
  if (b->bytes == NULL) {
    free(b);
    return UINT32_MAX;
  }
  blocks->at[i] = b;
  return i;
}
static inline void fake_free_block(struct fake_blocks* blocks, uint32_t i) {
  if (blocks->at[i]) free(blocks->at[i]->bytes);
  free(blocks->at[i]);
  blocks->at[i] = NULL;
}
static inline void fake_free_blocks(struct fake_blocks* blocks) {
  for (uint32_t i = 0; i < blocks->n; ++i) fake_free_block(blocks, i);
  free(blocks->at);
}
/* To a new address: what still reads the old one reads freed memory. */
static inline void fake_move_block(const kvasir_geometry* g, struct fake_block* b) {
  const size_t bytes = fake_heads(g, b) * fake_head_floats(g) * sizeof(float);
  float* moved = malloc(bytes);
  if (moved == NULL) return;
  memcpy(moved, b->bytes, bytes);
  free(b->bytes);
  b->bytes = moved;
}

/* Leases block i, or the slice of one head of it. */
static inline void fake_lease(const kvasir_geometry* g, struct fake_blocks* blocks, uint32_t i,
                              uint32_t kv_head, kvasir_lease* lease) {
  struct fake_block* b = blocks->at[i];
  const uint32_t slice = kv_head != KVASIR_ALL_HEADS && b->key.kv_head == KVASIR_ALL_HEADS;
  const size_t head = slice ? kv_head : 0;
  lease->lease = lease->handle = (uint64_t)i + 1;
  lease->k = b->bytes + head * g->block_size * g->head_dim;
  lease->v = b->bytes + (size_t)fake_heads(g, b) * g->block_size * g->head_dim +
             head * g->block_size * g->v_dim;
  lease->n_tokens = b->key.n_tokens;
  lease->kv_head = kv_head;
  lease->state = KVASIR_LEASE_RESIDENT;
  b->n_leases += 1;
  b->stamp = ++blocks->clock;
}
static inline void fake_no_lease(uint32_t kv_head, uint32_t state, kvasir_lease* lease) {
  const kvasir_lease none = {.kv_head = kv_head, .state = state};
  *lease = none;
}
/* This holder is done; a block of all heads goes when every head was dropped. */
static inline void fake_drop(const kvasir_geometry* g, struct fake_blocks* blocks,
                             const kvasir_block_key* key) {
  const uint32_t i = fake_find(blocks, key);
  if (i == blocks->n) return;
  struct fake_block* b = blocks->at[i];
  const uint64_t all = g->n_kv_heads >= 64 ? UINT64_MAX : (UINT64_C(1) << g->n_kv_heads) - 1;
  b->dropped |= key->kv_head == b->key.kv_head ? all : UINT64_C(1) << key->kv_head;
  if (b->dropped == all && b->n_leases == 0) fake_free_block(blocks, i);
}

#endif
