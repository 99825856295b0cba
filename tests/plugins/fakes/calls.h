/* Plugin extension test.calls/1: the calls a selector received, in order.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CALLS_H
#define CALLS_H

#include <kvasir/step.h>

#define CALLS_EXTENSION "test.calls/1"

#define CALL_SELECT 1u
#define CALL_OBSERVE 2u
#define CALL_UPDATE 3u
#define CALL_EVICT_PLAN 4u

typedef struct recorded_call {
  uint32_t function; /* CALL_* */
  uint32_t layer, moment, flags, n_rows;
  kvasir_step_row row[8]; /* the first rows */
  /* CALL_OBSERVE: a copy of the mass */
  uint32_t n_queries, n_mass_rows;
  uint64_t* offsets;
  uint32_t* index;
  float* value;
  /* CALL_UPDATE: a copy of the items, pointers cleared */
  uint32_t n_items;
  kvasir_update_item* items;
} recorded_call;

typedef struct calls { /* belongs to the instance: lives as long as it does */
  uint32_t struct_size;
  uint32_t n;
  recorded_call* at;
  void* self;
  void (*clear)(void* self) KVASIR_NOEXCEPT;
} calls;

#endif
