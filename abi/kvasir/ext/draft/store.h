/* DRAFT plugin extension kvasir.store/1: a storage that keeps sealed blocks under the names of
 * their content, beyond the process. May still change. A storage offers it while it has such a
 * store: get_extension() answers null where its options name none. Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_STORE_H
#define KVASIR_EXT_DRAFT_STORE_H

#include <kvasir/storage.h>

#define KVASIR_EXT_STORE "kvasir.store/1"

/* Blocks of one run: of whatever K and V depend on besides tokens (model, types, rotation). */
typedef struct kvasir_store_run {
  uint64_t run[2];
  char about[128];                /* UTF-8, ends with 0: for people */
  uint64_t n_blocks;              /* names; a block of all layers counts once */
  uint64_t n_tokens;              /* in them */
  uint64_t n_files;               /* or records of another kind: one per name and layer */
  uint64_t bytes;                 /* that they take */
  uint64_t first_used, last_used; /* seconds since 1970, of the record used longest ago and last */
} kvasir_store_run;

/* What verify() and prune() go by. */
typedef struct kvasir_store_filter {
  uint32_t struct_size;
  uint32_t flags;              /* KVASIR_STORE_* */
  uint64_t run[2];             /* with KVASIR_STORE_ONE_RUN: of this one alone */
  uint64_t limit_bytes;        /* prune: with KVASIR_STORE_LIMIT, those used longest ago go until
                                  the others take no more */
  uint64_t older_than_seconds; /* prune: with KVASIR_STORE_OLDER, those last used before that */
} kvasir_store_filter;

#define KVASIR_STORE_ONE_RUN 1u
#define KVASIR_STORE_LIMIT 2u
#define KVASIR_STORE_OLDER 4u  /* neither LIMIT nor OLDER: prune() removes all */
#define KVASIR_STORE_DELETE 8u /* verify: removes what is not whole */

typedef struct kvasir_store_result {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t n_files, bytes;   /* looked at */
  uint64_t n_bad, bad_bytes; /* verify: not whole, or of another format */
  uint64_t n_removed, removed_bytes;
} kvasir_store_result;

typedef struct kvasir_store {
  uint32_t struct_size;
  uint32_t reserved;
  /* [control] after bind: the run that the names of blocks stand for from here on; before it
   * nothing is stored or restored. about: UTF-8, for list(). Blocks that seal() gives another hash
   * than the one they were written under are named by their content, and are stored. */
  kvasir_status (*name_run)(void* self, const uint64_t* run, const char* about,
                            kvasir_err* err) KVASIR_NOEXCEPT;
  /* [step] sealed blocks by name, key.handle 0, also those that this process never had: a RESIDENT
   * lease, and the caller is one more holder, as after seal(); or FAILED: not there, or not whole.
   * After the first that fails, a storage may let the others fail, too. A block that is not what
   * was stored is never given. */
  kvasir_status (*restore)(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                           kvasir_lease* out, uint32_t lease_size, kvasir_err* err) KVASIR_NOEXCEPT;
  /* The next three: [control] also before bind, and while other processes use the store.
   * Writes the first `capacity` runs and how many there are to *n_runs. */
  kvasir_status (*list)(void* self, kvasir_store_run* out, uint32_t capacity, uint32_t run_size,
                        uint32_t* n_runs, kvasir_err* err) KVASIR_NOEXCEPT;
  /* bad (may be null): told the name and what is wrong with each record that is not whole. */
  kvasir_status (*verify)(void* self, const kvasir_store_filter* filter,
                          void (*bad)(void* context, const char* name, const char* why),
                          void* context, kvasir_store_result* out, kvasir_err* err) KVASIR_NOEXCEPT;
  kvasir_status (*prune)(void* self, const kvasir_store_filter* filter, kvasir_store_result* out,
                         kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_store;

#endif
