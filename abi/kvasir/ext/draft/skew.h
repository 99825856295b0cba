/* DRAFT file format: per layer and kv head an orthogonal matrix A under which few columns of Q A
 * and K A hold most of Q K^T (arXiv:2406.19707). Made from a model, read by plugins. May still
 * change.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_SKEW_H
#define KVASIR_EXT_DRAFT_SKEW_H

#include <stdint.h>

#define KVASIR_SKEW_MAGIC "KVSKEW" /* padded with zeros to 8 bytes */
#define KVASIR_SKEW_VERSION 2u

/* Little endian, no padding. Behind it n_layers * n_kv_heads * head_dim * head_dim f32:
 * [layer][kv head][column of A][head_dim], columns by falling singular value. Then n_layers *
 * n_kv_heads * 2 * head_dim f32, [layer][kv head][q, k][column of A]: sums of |Q A| over the tokens
 * and query heads, and of |K A| over the tokens of a text, which say which columns matter. Queries
 * and keys are those that attention multiplies, after RoPE. */
typedef struct kvasir_skew_header {
  char magic[8];
  uint32_t version;
  uint32_t n_layers;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint64_t model_hash; /* kvasir_geometry.model_hash of the model it was made from */
  uint64_t checksum;   /* XXH3, 64 bits, of all bytes behind the header */
} kvasir_skew_header;

#endif
