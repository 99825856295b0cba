/* Status codes and the caller-owned error record.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_STATUS_H
#define KVASIR_STATUS_H

#include <kvasir/version.h>

typedef int32_t kvasir_status;

#define KVASIR_OK 0
/* Positive: not a failure, the host acts. Each is legal where it is named here; from any other
 * function it is a fault, as an unknown status is.
 * FALLBACK: select (attend densely in this call; counted and reported), speculate (no guess),
 *   evict_plan (no plan: everything stays).
 * AGAIN: acquire and prefetch (over a budget right now: try later), drain (not done in time).
 * REBUILD: seq_truncate (state is lost: the host feeds update() again from the start). */
#define KVASIR_FALLBACK 1
#define KVASIR_AGAIN 2
#define KVASIR_REBUILD 3
/* Negative: failures, each with a sentence in kvasir_err. */
#define KVASIR_ERR_INVALID (-1)     /* an argument or option value is wrong */
#define KVASIR_ERR_UNSUPPORTED (-2) /* legal, but not by this plugin */
#define KVASIR_ERR_VERSION (-3)     /* the other side is too old or too new */
/* Buffer too small: the needed count was written, nothing else changed. Legal from formats, select
 * and speculate; the host calls again with the same arguments and that much space, and the answer
 * must fit then. evict_plan has space for every candidate from the start. */
#define KVASIR_ERR_CAPACITY (-4)
#define KVASIR_ERR_OUT_OF_MEMORY (-5)
#define KVASIR_ERR_IO (-6)
#define KVASIR_ERR_CANCELLED (-7)
#define KVASIR_ERR_INTERNAL (-8)

#define KVASIR_ERR_TEXT_BYTES 512u

/* Owned and zeroed by the caller; the callee fills code and text (UTF-8, NUL-terminated) whenever
 * it returns a negative status. A failure without text is logged as a defect of the plugin. */
typedef struct kvasir_err {
  uint32_t struct_size;
  kvasir_status code;
  char text[KVASIR_ERR_TEXT_BYTES];
} kvasir_err;

#endif
