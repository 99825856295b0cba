/* Host extension kvasir.scratch/1: per-worker scratch memory that the host accounts for.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_SCRATCH_H
#define KVASIR_EXT_SCRATCH_H

#include <kvasir/version.h>

#define KVASIR_EXT_SCRATCH "kvasir.scratch/1"

typedef struct kvasir_scratch {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  /* [step] [worker] At least `bytes`, 64-byte aligned, contents undefined; null when out of memory.
   * Valid until the same worker asks again or the plugin's step function returns. */
  void* (*get)(void* self, uint32_t worker, uint64_t bytes)KVASIR_NOEXCEPT;
} kvasir_scratch;

#endif
