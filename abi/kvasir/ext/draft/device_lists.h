/* DRAFT plugin extensions kvasir.device-lists/1 and kvasir.device-list-reader/1: what a selector
 * chose stays on the device where it chose, and attention begins before the host has seen it. No
 * real device has used them yet.
 * Since 0.2.
 *
 * A host uses both or neither, and select() and run() wherever it has something to do with the
 * lists before attention. The lists are those that select() gives: the host reads them afterwards
 * and checks every index. Where one is wrong it does not use what run() here made of it.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_DEVICE_LISTS_H
#define KVASIR_EXT_DRAFT_DEVICE_LISTS_H

#include <kvasir/attention.h>
#include <kvasir/selector.h>

#define KVASIR_EXT_DEVICE_LISTS "kvasir.device-lists/1"
#define KVASIR_EXT_DEVICE_LIST_READER "kvasir.device-list-reader/1"

/* Of a selector of unit BLOCK and scope KV_HEAD that chooses by scores alone and knows beforehand
 * how many indices a list will have. */
typedef struct kvasir_device_lists {
  uint32_t struct_size;
  uint32_t reserved;
  /* [step] As select(), for sequences that decode a token, whose candidates are whole ranges
   * (step->candidates is null) and whose scores are on the device. Offsets and flags, all LISTED,
   * are written to `out`, in host memory, but the indices to `index`, u32 [out->capacity] on the
   * device: out->index is null. Lists have no weights, and the space suffices for max_units per
   * list or all candidates. */
  kvasir_status (*select)(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                          kvasir_selection* out, const kvasir_view* index,
                          kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_device_lists;

/* Items [item_begin, item_begin + n) of a part, inside one range: indices [first, first + n) of
 * `index`. What the part's items say there is a lease of the part, and not meant. */
typedef struct kvasir_attn_list {
  uint32_t part;
  uint32_t reserved;
  uint64_t item_begin;
  uint64_t n;
  uint64_t first;
} kvasir_attn_list;

/* Whose leases a part has: those of a sequence, in step->layer. */
typedef struct kvasir_attn_owner {
  uint64_t seq;
  /* Leases [0, unchanged) are those of the latest run() of this extension over this sequence and
   * layer that returned OK, 0 before the first one: what the backend made of them is still true. */
  uint32_t unchanged;
  uint32_t reserved;
} kvasir_attn_owner;

typedef struct kvasir_attn_lists {
  uint32_t struct_size;
  uint32_t list_size;
  const kvasir_attn_list* lists;
  uint64_t n_lists;
  const kvasir_attn_owner* owners; /* [in->n_parts], owner_size apart */
  uint32_t owner_size;
  uint32_t reserved;
  kvasir_view index; /* u32, on the device. From a plugin that nobody has checked: an index may be
                        anything, and is followed only if it is an ordinal of the part's leases */
} kvasir_attn_lists;

/* Of a backend that reads items on the device. */
typedef struct kvasir_device_list_reader {
  uint32_t struct_size;
  uint32_t reserved;
  /* [control] after bind: bytes of device memory that it keeps for one layer of one sequence of
   * n_blocks blocks, beside what plan() says. */
  uint64_t (*kept_bytes)(void* self, uint64_t n_blocks) KVASIR_NOEXCEPT;
  /* [step] As run(), over parts of unit BLOCK, without weights, whose leases are on the device. Of
   * an index that is no ordinal no key is seen; of a list that is out of order or names an ordinal
   * twice the result may be anything. */
  kvasir_status (*run)(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                       const kvasir_attn_lists* lists, kvasir_attn_out* out,
                       kvasir_err* err) KVASIR_NOEXCEPT;
  /* [control] The sequence has ended: what is kept of it can go. Also of one that it never met. */
  void (*forget)(void* self, uint64_t seq) KVASIR_NOEXCEPT;
} kvasir_device_list_reader;

#endif
