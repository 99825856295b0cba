/* Option schema and option values: the host validates TOML against it before plugin code runs.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_OPTION_H
#define KVASIR_OPTION_H

#include <kvasir/types.h>

#define KVASIR_OPTION_BOOL 1u   /* value.i = 0 or 1 */
#define KVASIR_OPTION_INT 2u    /* value.i */
#define KVASIR_OPTION_FLOAT 3u  /* value.f */
#define KVASIR_OPTION_STRING 4u /* value.s */
#define KVASIR_OPTION_ENUM 5u   /* value.i = index into enum_names; TOML string */
#define KVASIR_OPTION_BYTES 6u  /* value.i; TOML integer or "8GiB" */
#define KVASIR_OPTION_PATH 7u   /* value.s: absolute, seen from the file, or an address "x://..." */
#define KVASIR_OPTION_INT_LIST 8u /* value.list, value.n */

#define KVASIR_OPTION_REQUIRED 1u
#define KVASIR_OPTION_DEPRECATED 2u /* accepted, a note names help */
#define KVASIR_OPTION_OPTIONAL 4u   /* not delivered at all when the user did not set it */

/* Lies inside other structs: it never grows. */
typedef struct kvasir_value {
  uint32_t type; /* KVASIR_OPTION_* */
  uint32_t n;    /* elements of list */
  int64_t i;
  double f;
  const char* s;
  const int64_t* list;
} kvasir_value;

/* Static data, instance lifetime at least. Keys are for ever; a rename adds an alias.
 * Alternatives are options that say one thing in several ways ("budget_tokens" or "budget_blocks").
 * The host decides between them: the command line goes before the environment, that before files, a
 * file before those it includes; two said in one place are an error of the user. The plugin
 * receives the one that decides; where the user set none, the one of the group that has a default,
 * and none where all are OPTIONAL. */
typedef struct kvasir_option_schema {
  uint32_t struct_size;
  uint32_t type;
  uint32_t flags;
  uint32_t n_enum;
  const char* key;
  const char* const* aliases;    /* null-terminated list, or null */
  const char* const* enum_names; /* [n_enum] */
  const char* unit;              /* "tokens", "blocks", or null */
  const char* help;              /* one line */
  kvasir_value def;              /* default; unused with REQUIRED or OPTIONAL */
  kvasir_value min;              /* INT, BYTES, INT_LIST: i; FLOAT: f; type = 0: no bound */
  kvasir_value max;
  const char* group; /* name that alternatives share, or null. At most one of them has a default,
                        the others are OPTIONAL, none is REQUIRED */
  const char* with;  /* key of an option of a group, or null: this one refines it, and is delivered
                        only where that one is. Set by the user without it: an error */
} kvasir_option_schema;

/* Every option of the schema is delivered, defaulted, in schema order, except unset OPTIONAL ones
 * and the alternatives that do not decide. */
typedef struct kvasir_option {
  const char* key; /* the schema's key, never an alias */
  kvasir_value value;
  uint32_t is_set; /* 0 = the default; by the user 1 = in a file, 2 = in the environment, 3 = on the
                      command line */
  uint32_t reserved;
} kvasir_option;

#endif
