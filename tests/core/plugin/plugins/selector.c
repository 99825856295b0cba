/* A selector with one option of every type; its `fault` says where it misbehaves.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#include "common.h"

#include <stdlib.h>

#ifndef SCHEMA_BYTES
#define SCHEMA_BYTES sizeof(kvasir_option_schema)
#endif
#ifndef FIRST_KEY
#define FIRST_KEY "budget_tokens"
#endif
#ifndef FIRST_TYPE
#define FIRST_TYPE KVASIR_OPTION_INT
#endif
#ifndef FIRST_DEFAULT
#define FIRST_DEFAULT 4096
#endif
#ifndef FIRST_FLAGS
#define FIRST_FLAGS 0u
#endif
#ifndef FIRST_ALIASES
#define FIRST_ALIASES budget_aliases
#endif

#define NONE \
  { 0, 0, 0, 0.0, 0, 0 }
#define INT(v) \
  { KVASIR_OPTION_INT, 0, (v), 0.0, 0, 0 }
#define REAL(v) \
  { KVASIR_OPTION_FLOAT, 0, 0, (v), 0, 0 }
#define TEXT(type, v) \
  { (type), 0, 0, 0.0, (v), 0 }

static const char* const budget_aliases[] = {"top_k_tokens", "topk", 0};
static const char* const old_aliases[] = {"old_ratio", 0};
static const char* const methods[] = {"mean", "max", "softmax_sum"};
static const int64_t list_default[] = {1, 2};

static const kvasir_option_schema schema[] = {
    {SCHEMA_BYTES, FIRST_TYPE, FIRST_FLAGS, 0, FIRST_KEY, FIRST_ALIASES, 0, "tokens",
     "tokens selected", INT(FIRST_DEFAULT), INT(1), INT(100000)},
    {SCHEMA_BYTES,
     KVASIR_OPTION_BOOL,
     0,
     0,
     "exact",
     0,
     0,
     0,
     "exactly",
     {1, 0, 1, 0.0, 0, 0},
     NONE,
     NONE},
    {SCHEMA_BYTES, KVASIR_OPTION_FLOAT, KVASIR_OPTION_DEPRECATED, 0, "ratio", old_aliases, 0, 0,
     "say budget_tokens", REAL(0.5), REAL(0.0), REAL(1.0)},
    {SCHEMA_BYTES,
     KVASIR_OPTION_ENUM,
     0,
     3,
     "method",
     0,
     methods,
     0,
     "reduction",
     {KVASIR_OPTION_ENUM, 0, 1, 0.0, 0, 0},
     NONE,
     NONE},
    {SCHEMA_BYTES,
     KVASIR_OPTION_BYTES,
     0,
     0,
     "memory",
     0,
     0,
     "bytes",
     "memory",
     {KVASIR_OPTION_BYTES, 0, 1024, 0.0, 0, 0},
     NONE,
     NONE},
    {SCHEMA_BYTES, KVASIR_OPTION_PATH, KVASIR_OPTION_OPTIONAL, 0, "table", 0, 0, 0, "a file", NONE,
     NONE, NONE},
    {SCHEMA_BYTES,
     KVASIR_OPTION_INT_LIST,
     0,
     0,
     "levels",
     0,
     0,
     0,
     "levels",
     {KVASIR_OPTION_INT_LIST, 2, 0, 0.0, 0, list_default},
     INT(0),
     INT(9)},
    {SCHEMA_BYTES, KVASIR_OPTION_STRING, 0, 0, "fault", 0, 0, 0, "where it fails",
     TEXT(KVASIR_OPTION_STRING, ""), NONE, NONE},
};

static const kvasir_desc plugin_desc = {DESC_BYTES,
                                        DESCRIBED_KIND,
                                        TEST_ID,
                                        "1.2.3",
                                        "Test",
                                        "Tests",
                                        "Apache-2.0",
                                        0,
                                        "A test.",
                                        schema,
                                        sizeof schema / sizeof schema[0],
                                        sizeof(kvasir_option_schema),
                                        TEST_CAPS,
                                        TEST_NEEDS,
                                        TEST_PROVIDES,
                                        TEST_DTYPES};

typedef struct selector {
  kvasir_selector table;
  char fault[32];
} selector;

static selector* never_destroyed;

static int has_fault(void* self, const char* fault) {
  return strcmp(((selector*)self)->fault, fault) == 0;
}

static kvasir_status sel_validate(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)g;
  return has_fault(self, "validate") ? fail(err, KVASIR_ERR_INVALID, "this model is too small")
                                     : KVASIR_OK;
}
static kvasir_status sel_bind(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)g;
  return has_fault(self, "bind") ? fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no room") : KVASIR_OK;
}
static kvasir_status sel_seq_open(void* self, const uint64_t* seqs, uint32_t n, kvasir_err* err) {
  (void)self, (void)seqs, (void)n, (void)err;
  return KVASIR_OK;
}
static kvasir_status sel_seq_fork(void* self, const uint64_t* a, const uint64_t* b, uint32_t n,
                                  kvasir_err* err) {
  (void)self, (void)a, (void)b, (void)n, (void)err;
  return KVASIR_OK;
}
static kvasir_status sel_seq_truncate(void* self, const uint64_t* seqs, const uint32_t* kv_len,
                                      uint32_t n, kvasir_err* err) {
  (void)self, (void)seqs, (void)kv_len, (void)n, (void)err;
  return KVASIR_REBUILD;
}
static void sel_seq_close(void* self, const uint64_t* seqs, uint32_t n) {
  (void)self, (void)seqs, (void)n;
}
static void sel_destroy(void* self) { free(self); }

static kvasir_status sel_limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)err;
  out->max_units = 32;
  if (has_fault(self, "limits.unit")) out->unit = 7;
  if (has_fault(self, "limits.scope")) out->scope = 3;
  if (has_fault(self, "limits.flags")) out->flags = 1u << 9;
  if (has_fault(self, "limits.zero")) out->flags = KVASIR_LIMIT_ZERO_UNITS;
  if (has_fault(self, "limits.plan_at")) out->plan_at = KVASIR_PLAN_AT_STEP_END;
  if (has_fault(self, "limits.mass")) out->mass_at = KVASIR_MASS_AT_DECODE;
  if (has_fault(self, "limits.reserved")) out->reserved = 1;
  return KVASIR_OK;
}

static kvasir_status sel_select(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                kvasir_selection* out, kvasir_err* err) {
  (void)step, (void)in;
  if (has_fault(self, "select")) return fail(err, KVASIR_ERR_INTERNAL, "lost\nmy way");
  if (has_fault(self, "select.silent")) return KVASIR_ERR_INTERNAL;
  if (has_fault(self, "select.unknown")) return 42;
  if (has_fault(self, "select.unterminated")) {
    memset(err->text, 'x', sizeof err->text);
    return KVASIR_ERR_INTERNAL;
  }
  if (has_fault(self, "select.capacity")) {
    out->needed = 77;
    return KVASIR_ERR_CAPACITY;
  }
  return has_fault(self, "select.fallback") ? KVASIR_FALLBACK : KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  (void)index, (void)host;
  const char* fault = string_option(options, n_options, option_size, "fault");
  if (strcmp(fault, "create") == 0) return fail(err, KVASIR_ERR_INVALID, "I do not want to");
  if (strcmp(fault, "create.silent") == 0) return KVASIR_ERR_INTERNAL;
  if (strcmp(fault, "create.null") == 0) return KVASIR_OK;
  selector* s = calloc(1, sizeof *s);
  if (!s) return fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  snprintf(s->fault, sizeof s->fault, "%s", fault);
  kvasir_instance* base = &s->table.base;
  base->struct_size = sizeof s->table;
  base->kind = KVASIR_KIND_SELECTOR;
  base->self = s;
  base->desc = &plugin_desc;
  base->validate = sel_validate;
  base->bind = sel_bind;
  base->seq_open = sel_seq_open;
  base->seq_fork = sel_seq_fork;
  base->seq_truncate = sel_seq_truncate;
  base->seq_close = sel_seq_close;
  base->destroy = sel_destroy;
  s->table.limits = sel_limits;
  s->table.select = sel_select;
  if (strcmp(fault, "table.small") == 0) base->struct_size = sizeof s->table - 8;
  if (strcmp(fault, "table.tiny") == 0) {
    base->struct_size = 8;
    never_destroyed = s; /* the host cannot trust destroy; reachable, so no leak */
  }
  if (strcmp(fault, "table.large") == 0) base->struct_size = sizeof s->table + 64;
  if (strcmp(fault, "table.kind") == 0) base->kind = KVASIR_KIND_STORAGE;
  if (strcmp(fault, "table.desc") == 0) base->desc = 0;
  if (strcmp(fault, "table.bind") == 0) base->bind = 0;
  if (strcmp(fault, "table.seq") == 0) base->seq_fork = 0;
  if (strcmp(fault, "table.limits") == 0) s->table.limits = 0;
  *out = base;
  return KVASIR_OK;
}
