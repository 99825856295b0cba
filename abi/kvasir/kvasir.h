/* All stable headers.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_KVASIR_H
#define KVASIR_KVASIR_H

#include <kvasir/attention.h>
#include <kvasir/ext/completion.h>
#include <kvasir/ext/log.h>
#include <kvasir/ext/scratch.h>
#include <kvasir/ext/thread_pool.h>
#include <kvasir/layout_checks.h>
#include <kvasir/representative.h>
#include <kvasir/selector.h>
#include <kvasir/storage.h>

#endif
