/* DRAFT plugin extension kvasir.device-memory/1, of the storage that owns a device: its memory for
 * whatever else a run keeps there (records, queries, results). No real device has used it yet.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_DEVICE_MEMORY_H
#define KVASIR_EXT_DRAFT_DEVICE_MEMORY_H

#include <kvasir/instance.h>

#define KVASIR_EXT_DEVICE_MEMORY "kvasir.device-memory/1"

/* self: of the instance. Everything that alloc() gave is freed before destroy(). Views may also be
 * of memory on this device that the host has from elsewhere: the model's layers may be on it. */
typedef struct kvasir_device_memory {
  uint32_t struct_size;
  int32_t device; /* goes into views of this memory */
  /* [any] after bind; aligned to 64 bytes or more, contents undefined. OUT_OF_MEMORY when full. */
  kvasir_status (*alloc)(void* self, uint64_t bytes, void** out, kvasir_err* err) KVASIR_NOEXCEPT;
  void (*free)(void* self, void* data) KVASIR_NOEXCEPT; /* [any] */
  /* [any] between views of the same type and shape, in HOST, PINNED or DEVICE; done on return,
   * and after all that earlier calls have started. */
  kvasir_status (*copy)(void* self, const kvasir_view* to, const kvasir_view* from,
                        kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] zero bytes, seen by all later calls. */
  kvasir_status (*zero)(void* self, void* data, uint64_t bytes, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] (optional) *out: 1 where every number of a contiguous F32 view on the device is finite,
   * else 0; of what all earlier calls have written. Without it the host copies what it checks. */
  kvasir_status (*all_finite)(void* self, const kvasir_view* of, uint32_t* out,
                              kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] (optional) copy(to, from), whose bytes may be 0, and all_finite() of n views, into
   * out [n], with one wait for all. */
  kvasir_status (*fetch)(void* self, const kvasir_view* to, const kvasir_view* from,
                         const kvasir_view* of, uint32_t n, uint32_t* out,
                         kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_device_memory;

#endif
