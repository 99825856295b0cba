/* Host extension kvasir.log/1: one line into the host's log, prefixed with the plugin's id.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_LOG_H
#define KVASIR_EXT_LOG_H

#include <kvasir/version.h>

#define KVASIR_EXT_LOG "kvasir.log/1"

typedef struct kvasir_log {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  /* [any] level: KVASIR_LOG_* (entry.h); text: UTF-8, no newline. */
  void (*write)(void* self, uint32_t level, const char* plugin_id,
                const char* text) KVASIR_NOEXCEPT;
} kvasir_log;

#endif
