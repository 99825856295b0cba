/* The one exported symbol, the note a loader reads before dlopen, host and plugin tables.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_ENTRY_H
#define KVASIR_ENTRY_H

#include <kvasir/option.h>

#define KVASIR_KIND_SELECTOR 1u
#define KVASIR_KIND_REPRESENTATIVE 2u
#define KVASIR_KIND_STORAGE 3u
#define KVASIR_KIND_ATTENTION 4u
#define KVASIR_KIND_BIT(kind) (1u << (kind))

/* ---- metadata, readable without running plugin code ---------------------------------------- */

#define KVASIR_NOTE_SECTION ".note.kvasir"
#define KVASIR_NOTE_TYPE 1u
#define KVASIR_NOTE_NAME "Kvasir"

/* CPU features a plugin must have before dlopen: the loader refuses it on a lesser machine. */
#define KVASIR_CPU_AVX2 1u /* with FMA and F16C */
#define KVASIR_CPU_AVX512 2u
#define KVASIR_CPU_AMX 4u

typedef struct kvasir_note {
  uint32_t namesz; /* 8 */
  uint32_t descsz; /* sizeof(kvasir_note) - 20 */
  uint32_t type;   /* KVASIR_NOTE_TYPE */
  char name[8];    /* KVASIR_NOTE_NAME */
  uint32_t abi_major;
  uint32_t abi_minor;      /* built with */
  uint32_t required_minor; /* the host must have at least this */
  uint32_t kinds;          /* KVASIR_KIND_BIT() of all plugins in the file */
  uint32_t cpu_features;   /* KVASIR_CPU_* */
  uint32_t reserved;
  char version[32];
  char ids[448];    /* NUL-separated plugin ids, ended by an empty one */
  char drafts[128]; /* likewise: draft extensions it cannot do without */
} kvasir_note;

/* Once per shared object, at file scope: KVASIR_PLUGIN_NOTE(kinds, "org.example.quest\0", "1.0.0")
 */
#define KVASIR_PLUGIN_NOTE_FULL(kinds_, ids_, version_, cpu_features_, drafts_) \
  __attribute__((used, section(KVASIR_NOTE_SECTION),                            \
                 aligned(4))) static const kvasir_note kvasir_note_ = {         \
      8u,                                                                       \
      KVASIR_PLUGIN_NOTE_DESC_BYTES,                                            \
      KVASIR_NOTE_TYPE,                                                         \
      KVASIR_NOTE_NAME,                                                         \
      KVASIR_ABI_MAJOR,                                                         \
      KVASIR_ABI_MINOR,                                                         \
      KVASIR_ABI_MINOR,                                                         \
      (kinds_),                                                                 \
      (cpu_features_),                                                          \
      0u,                                                                       \
      version_,                                                                 \
      ids_,                                                                     \
      drafts_}
#define KVASIR_PLUGIN_NOTE(kinds_, ids_, version_) \
  KVASIR_PLUGIN_NOTE_FULL(kinds_, ids_, version_, 0u, "")
#define KVASIR_PLUGIN_NOTE_DESC_BYTES (uint32_t)(sizeof(kvasir_note) - 20u)

/* ---- host ---------------------------------------------------------------------------------- */

#define KVASIR_LOG_DEBUG 0u
#define KVASIR_LOG_INFO 1u
#define KVASIR_LOG_WARN 2u
#define KVASIR_LOG_ERROR 3u

/* Valid until shutdown() returns. Extensions are looked up by id ("kvasir.thread-pool/1"); null
 * when the host has none, and the plugin must then do without. */
typedef struct kvasir_host {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_min; /* range of minors this host can speak */
  uint32_t abi_minor_max;
  const char* name;
  const char* version;
  void* self;
  const void* (*get_extension)(void* self, const char* id)KVASIR_NOEXCEPT; /* [any] */
} kvasir_host;

/* ---- plugin -------------------------------------------------------------------------------- */

/* caps: what a plugin is like. */
#define KVASIR_CAP_OWN_THREADS (UINT64_C(1) << 0)   /* storage only */
#define KVASIR_CAP_OPAQUE_STATE (UINT64_C(1) << 1)  /* per-sequence state outside the slab */
#define KVASIR_CAP_HISTORY_STATE (UINT64_C(1) << 2) /* which cannot be rebuilt by update() */

/* needs: checked against the provides of the others before a model loads. */
#define KVASIR_NEED_SCORES (UINT64_C(1) << 0)      /* a representative */
#define KVASIR_NEED_MASS (UINT64_C(1) << 1)        /* attention mass from the backend */
#define KVASIR_NEED_KEYS (UINT64_C(1) << 2)        /* leases of the candidates in select() */
#define KVASIR_NEED_INPUT (UINT64_C(1) << 3)       /* attention input x in select(), speculate() */
#define KVASIR_NEED_UNROTATED_K (UINT64_C(1) << 4) /* K stored before RoPE */
#define KVASIR_NEED_LOG_WEIGHT (UINT64_C(1) << 5)  /* one weight per index */
#define KVASIR_NEED_HEAD_LOG_WEIGHT (UINT64_C(1) << 6) /* one per index and query head */
#define KVASIR_NEED_TOKEN_ITEMS (UINT64_C(1) << 7)     /* token-granular attention */
#define KVASIR_NEED_DISTANCE (UINT64_C(1) << 8)        /* dist_min, dist_max, several parts */
#define KVASIR_NEED_CONTRIBUTION (UINT64_C(1) << 9)    /* o and lse in the result of select() */

/* provides */
#define KVASIR_PROVIDE_SCORES (UINT64_C(1) << 0)
#define KVASIR_PROVIDE_MASS (UINT64_C(1) << 1)
#define KVASIR_PROVIDE_LOG_WEIGHT (UINT64_C(1) << 5)
#define KVASIR_PROVIDE_HEAD_LOG_WEIGHT (UINT64_C(1) << 6)
#define KVASIR_PROVIDE_TOKEN_ITEMS (UINT64_C(1) << 7)
#define KVASIR_PROVIDE_DISTANCE (UINT64_C(1) << 8)
#define KVASIR_PROVIDE_STABLE_LEASES (UINT64_C(1) << 16) /* leases may outlive the step */
#define KVASIR_PROVIDE_FETCH (UINT64_C(1) << 17)         /* a storage: acquire FETCH */
#define KVASIR_PROVIDE_SUMMED_SCORES (UINT64_C(1) << 18) /* score() with KVASIR_SCORE_SUMMED */

typedef struct kvasir_desc { /* static data */
  uint32_t struct_size;
  uint32_t kind;
  const char* id;      /* reverse domain: "org.example.quest" */
  const char* version; /* semver of the plugin */
  const char* name;
  const char* vendor;
  const char* license; /* SPDX */
  const char* url;
  const char* summary; /* one line */
  const kvasir_option_schema* options;
  uint32_t n_options;
  uint32_t option_size; /* sizeof(kvasir_option_schema) as the plugin was built */
  uint64_t caps;
  uint64_t needs;
  uint64_t provides;
  uint64_t dtypes; /* K and V element types it reads (storage: can hold); 0 = any. A selector whose
                      update() reads K or V names them */
  /* KVASIR_MEM_BIT() masks. read: where the views, leased K and V and slab pages that it reads may
   * lie (storage: the tokens of write_tokens). write: where the results that it fills may lie. The
   * host passes HOST memory where the mask allows it, else a copy on the device; scores that lie on
   * a device as they are, if the selector's mask allows that. */
  uint32_t mem_kinds_read;
  uint32_t mem_kinds_write;
} kvasir_desc;

struct kvasir_instance;

typedef struct kvasir_plugin { /* static data */
  uint32_t struct_size;
  uint32_t reserved;
  uint32_t (*count)(void) KVASIR_NOEXCEPT; /* [any] */
  const kvasir_desc* (*describe)(uint32_t index)
      KVASIR_NOEXCEPT; /* [any] cheap: no I/O, no thread */
  /* [control] options: n items, option_size apart. On success *out is owned by the host until its
   * destroy(). */
  kvasir_status (*create)(uint32_t index, const kvasir_host* host, const kvasir_option* options,
                          uint32_t n_options, uint32_t option_size, struct kvasir_instance** out,
                          kvasir_err* err) KVASIR_NOEXCEPT;
  void (*shutdown)(void) KVASIR_NOEXCEPT; /* [control] (optional) after all instances; may repeat */
} kvasir_plugin;

typedef struct kvasir_request {
  uint32_t struct_size;
  uint32_t abi_minor;          /* out: the minor the plugin will speak, inside the host's range */
  const kvasir_plugin* plugin; /* out */
} kvasir_request;

/* The only exported symbol.                                                        [control]
 * May be called more than once; returns the same table. */
KVASIR_EXTERN_C __attribute__((visibility("default"))) kvasir_status kvasir_plugin_entry(
    const kvasir_host* host, kvasir_request* request, kvasir_err* err) KVASIR_NOEXCEPT;

#endif
