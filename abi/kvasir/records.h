/* What a selector or a representative asks for beside its own calls: records that the host keeps
 * for it, attention mass; and what memory it takes itself. Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_RECORDS_H
#define KVASIR_RECORDS_H

#include <kvasir/step.h>

/* Of "the last queries of the prompt": every one. */
#define KVASIR_ALL_QUERIES 0xffffffffu

#define KVASIR_PART_ALL 0u    /* mass over everything attended */
#define KVASIR_PART_WINDOW 1u /* mass over window and open block only */

/* Which attention mass is wanted; at = 0: none, and the rest is not read. Lies inside other
 * structs: it never grows. */
typedef struct kvasir_mass_wish {
  uint32_t at;           /* KVASIR_MASS_AT_* set */
  uint32_t level;        /* KVASIR_MASS_LISTS, _BLOCK or _TOKEN */
  uint32_t reduce;       /* KVASIR_MASS_PER_Q_HEAD … */
  uint32_t part;         /* KVASIR_PART_* */
  uint32_t last_queries; /* of the prompt: so many of its last ones; 0 = none of a prompt */
  uint32_t reserved;
} kvasir_mass_wish;

/* Memory of the plugin's own, records apart. For plans only: nothing is allocated by it. Lies
 * inside other structs: it never grows. */
typedef struct kvasir_memory {
  uint64_t state_bytes; /* that max_sequences sequences of max_context tokens leave, all layers */
  uint64_t state_peak_bytes; /* the most it needs at once on the way there; 0 = as state_bytes */
} kvasir_memory;

#define KVASIR_LAYOUT_CONTENT_ONLY 1u    /* records depend on the block's K and V alone */
#define KVASIR_LAYOUT_WANT_PROMPT_END 2u /* update() items with KVASIR_ITEM_PROMPT_END */
#define KVASIR_LAYOUT_SEALED_ONLY 4u     /* no NEW item before a block is full */
#define KVASIR_LAYOUT_WANT_FINAL 8u      /* update() items with KVASIR_ITEM_FINAL */
#define KVASIR_LAYOUT_PROMPT_END_ALL 16u /* PROMPT_END items of window and open block, too */
/* block_size equal slices, one per token: truncation clears those cut off and keeps the others,
 * where any other record of a cut block is cleared and fed again. */
#define KVASIR_LAYOUT_PER_TOKEN 32u
#define KVASIR_LAYOUT_OBSERVE_WRITES 64u /* selectors: observe() writes records, too */
/* update() reads K and V of the new tokens of a NEW item alone, of all tokens of PROMPT_END and
 * FINAL items, and of no other items. Where the host copies blocks for a plugin that cannot read
 * them where they lie, it copies no more: the rest of a copy is unspecified, k and v are null where
 * nothing is read. */
#define KVASIR_LAYOUT_READS_NEW 128u

/* Filled by layout(); zeroed by the host first. */
typedef struct kvasir_layout {
  uint32_t struct_size;
  uint32_t flags;          /* KVASIR_LAYOUT_* */
  uint64_t record_bytes;   /* per (layer, kv head, block); a multiple of 4, records are 64-byte
                              aligned when it is a multiple of 64 */
  uint64_t open_bytes;     /* additional, until the block is FINAL; same alignment */
  uint64_t format;         /* changes when records of an older build cannot be read */
  uint32_t refresh_tokens; /* the PROMPT_END items again, when every n-th decoded token was
                              attended; 0 = never */
  uint32_t mem_kind;     /* KVASIR_MEM_HOST or _DEVICE: where its records shall lie. On a device the
                            storage's kvasir.device-memory/1 allocates, copies and clears them */
  kvasir_mass_wish mass; /* update() items carry it: level TOKEN, reduce PER_Q_HEAD, no others */
  kvasir_memory memory;  /* of a representative; zero for a selector, whose limits() say it */
  /* Since 0.2. Additional, per (layer, kv head, page of geometry.page_blocks blocks), a multiple of
   * 64: for what is made of all records of a page. Truncation that cuts a block of the page clears
   * them. */
  uint32_t page_bytes;
  uint32_t reserved;
} kvasir_layout;

#endif
