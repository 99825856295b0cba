/* DRAFT plugin extension kvasir.tier-counters/1: what a storage of several tiers moved. May still
 * change.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_TIER_COUNTERS_H
#define KVASIR_EXT_DRAFT_TIER_COUNTERS_H

#include <kvasir/instance.h>

#define KVASIR_EXT_TIER_COUNTERS "kvasir.tier-counters/1"

/* Sums since bind; they only grow. Element of an array: `count_size` apart. */
typedef struct kvasir_tier_count {
  const char* name;       /* static; a short word: "memory", "file" */
  uint64_t bytes_read;    /* by transfers between tiers, out of this one: all that was read, also */
  uint64_t bytes_written; /* checksums and gaps; likewise, into it. What attention reads of leases
                             counts nowhere here. */
  uint64_t tokens;        /* times a token of one kv head was: tier 0: given by a READ lease; slower
                             tiers: missing there when a READ asked for it, so NOT_RESIDENT */
  /* Of reads of this tier; 0 where the storage does not measure. read_nanos / busy_nanos were under
   * way at a time, on average. */
  uint64_t n_reads;    /* calls that read */
  uint64_t busy_nanos; /* while one or more were under way, until what they brought was usable */
  uint64_t read_nanos; /* each for itself */
} kvasir_tier_count;

typedef struct kvasir_tier_counters {
  uint32_t struct_size;
  uint32_t reserved;
  /* [any] after bind; self: the instance's. Writes the first `capacity` tiers, fastest first, and
   * how many there are to *n_tiers, which does not change. */
  kvasir_status (*count)(void* self, kvasir_tier_count* out, uint32_t capacity, uint32_t count_size,
                         uint32_t* n_tiers, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_tier_counters;

#endif
