/* Host extension kvasir.completion/1: how a storage reports finished transfers.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_COMPLETION_H
#define KVASIR_EXT_COMPLETION_H

#include <kvasir/status.h>

#define KVASIR_EXT_COMPLETION "kvasir.completion/1"

typedef struct kvasir_completion {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  /* [any] Exactly once per ticket. status: of the whole; block_status: one per accepted key, or
   * null when all equal status. bytes: moved. */
  void (*complete)(void* self, uint64_t ticket, kvasir_status status,
                   const kvasir_status* block_status, uint32_t n_blocks,
                   uint64_t bytes) KVASIR_NOEXCEPT;
} kvasir_completion;

#endif
