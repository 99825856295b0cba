/* Host extension kvasir.thread-pool/1: the one pool of pinned workers.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_THREAD_POOL_H
#define KVASIR_EXT_THREAD_POOL_H

#include <kvasir/version.h>

#define KVASIR_EXT_THREAD_POOL "kvasir.thread-pool/1"

/* Runs [begin, end) as worker `worker`, 0 <= worker < max_workers().             [worker] */
typedef void (*kvasir_task)(void* user, uint64_t begin, uint64_t end,
                            uint32_t worker) KVASIR_NOEXCEPT;

typedef struct kvasir_thread_pool {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  uint32_t (*max_workers)(void* self) KVASIR_NOEXCEPT; /* [any], constant for the instance */
  /* [step] Splits [0, n_tasks) into pieces of at most `grain` (0: one piece per worker), blocks
   * until all are done. Not re-entrant: non-zero when refused, then the caller runs the loop
   * itself. */
  int32_t (*parallel_for)(void* self, uint64_t n_tasks, uint64_t grain, kvasir_task task,
                          void* user) KVASIR_NOEXCEPT;
  /* [any] (optional) constant for the instance: the memory node beside the worker's core, as the
   * operating system numbers it; -1 when the worker is bound to no core. */
  int32_t (*node_of)(void* self, uint32_t worker) KVASIR_NOEXCEPT;
} kvasir_thread_pool;

#endif
