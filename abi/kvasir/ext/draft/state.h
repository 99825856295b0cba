/* DRAFT plugin extension kvasir.state/1: opaque sequence state as bytes. May still change.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_STATE_H
#define KVASIR_EXT_DRAFT_STATE_H

#include <kvasir/instance.h>

#define KVASIR_EXT_STATE "kvasir.state/1"

typedef struct kvasir_state {
  uint32_t struct_size;
  uint32_t reserved;
  /* [control] write() is called with consecutive pieces; non-zero from it ends the save. */
  kvasir_status (*save)(void* self, uint64_t seq,
                        int32_t (*write)(void* user, const void* bytes, uint64_t n) KVASIR_NOEXCEPT,
                        void* user, kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] seq is open and empty; bytes are untrusted. */
  kvasir_status (*load)(void* self, uint64_t seq, const void* bytes, uint64_t n,
                        kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_state;

#endif
