/* DRAFT plugin extension kvasir.block-heat/1: what the blocks of a storage are worth to the
 * strategy that attends to them, so that a storage of several tiers keeps those in memory that
 * will be asked for again. May still change.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_BLOCK_HEAT_H
#define KVASIR_EXT_DRAFT_BLOCK_HEAT_H

#include <kvasir/storage.h>

#define KVASIR_EXT_BLOCK_HEAT "kvasir.block-heat/1"

#define KVASIR_HEAT_NONE 0u
/* Of the blocks that a step attended: the attention mass of their tokens, as the mean over queries
 * and query heads, 0 to 1. Told of decoded tokens, and of prompts that a selector chooses for. The
 * backend has to give mass (KVASIR_NEED_MASS). */
#define KVASIR_HEAT_MASS 1u
/* Of all candidates that a selector chose among by scores (KVASIR_NEED_SCORES), chosen or not:
 * exp(softmax_scale * (score - best score of its list)), of several lists the largest, 0 to 1. */
#define KVASIR_HEAT_SCORE 2u

typedef struct kvasir_block_heat {
  uint32_t struct_size;
  uint32_t reserved;
  /* [control] after create: which KVASIR_HEAT_* it is to be told; it does not change. */
  uint32_t (*wants)(void* self) KVASIR_NOEXCEPT;
  /* [step] sealed blocks of one layer and their values [n], at most once per layer and step; a
   * block that sequences share comes once for each. MASS is told after the layer was attended,
   * SCORE before its blocks are acquired. A block that is not named was not attended, or no
   * candidate. */
  kvasir_status (*heat)(void* self, const kvasir_block_key* keys, const float* value, uint32_t n,
                        uint32_t key_size, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_block_heat;

#endif
