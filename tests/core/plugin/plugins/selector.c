/* A selector whose option `fault` says where it misbehaves in the run.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#include "common.h"

static const kvasir_option_schema schema[] = {TEXT_OPTION("fault", "where it fails")};
TEST_DESC(schema, 1);

typedef struct selector {
  kvasir_selector table;
  char fault[32];
} selector;

static int has_fault(void* self, const char* fault) {
  return strcmp(((selector*)self)->fault, fault) == 0;
}

static kvasir_status validate(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)g;
  return has_fault(self, "validate")
             ? kvasir_fail(err, KVASIR_ERR_INVALID, "this model is too small")
             : KVASIR_OK;
}
static kvasir_status bind_run(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)g;
  return has_fault(self, "bind") ? kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no space")
                                 : KVASIR_OK;
}
static kvasir_status seq_open(void* self, const uint64_t* seqs, uint32_t n, kvasir_err* err) {
  (void)self, (void)seqs, (void)n, (void)err;
  return KVASIR_OK;
}
static kvasir_status seq_fork(void* self, const uint64_t* a, const uint64_t* b, uint32_t n,
                              kvasir_err* err) {
  (void)self, (void)a, (void)b, (void)n, (void)err;
  return KVASIR_OK;
}
static kvasir_status seq_truncate(void* self, const uint64_t* seqs, const uint32_t* kv_len,
                                  uint32_t n, kvasir_err* err) {
  (void)self, (void)seqs, (void)kv_len, (void)n, (void)err;
  return KVASIR_REBUILD;
}
static void seq_close(void* self, const uint64_t* seqs, uint32_t n) {
  (void)self, (void)seqs, (void)n;
}

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const uint64_t before = out->max_units;
  (void)err;
  out->max_units = 32;
  if (has_fault(self, "limits.unit")) out->unit = 7;
  if (has_fault(self, "limits.scope")) out->scope = 3;
  if (has_fault(self, "limits.both")) out->expected_units = 40;
  if (has_fault(self, "limits.none")) out->max_units = 0;
  if (has_fault(self, "limits.silent")) out->max_units = before;
  if (has_fault(self, "limits.plan_at")) out->plans.at = KVASIR_PLAN_AT_STEP_END;
  if (has_fault(self, "limits.mass")) out->mass.at = KVASIR_MASS_AT_DECODE;
  if (has_fault(self, "limits.chunk")) out->prefill.slice_tokens = KVASIR_SLICE_CHUNK;
  if (has_fault(self, "limits.slice")) out->prefill.slice_tokens = 48;
  if (has_fault(self, "limits.query_block")) out->prefill.query_block = 4; /* and no slices */
  if (has_fault(self, "limits.dense_last")) out->prefill.dense_last_queries = 4;
  if (has_fault(self, "limits.flags")) out->flags = 1u << 31;
  return KVASIR_OK;
}

static kvasir_status select_none(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                 kvasir_selection* out, kvasir_err* err) {
  (void)step, (void)in;
  if (has_fault(self, "select")) return kvasir_fail(err, KVASIR_ERR_INTERNAL, "lost\nmy way");
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
  if (has_fault(self, "select.again")) return KVASIR_AGAIN;
  if (has_fault(self, "select.rebuild")) return KVASIR_REBUILD;
  return has_fault(self, "select.fallback") ? KVASIR_FALLBACK : KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  selector* s = test_instance(sizeof *s, sizeof s->table, &plugin_desc);
  (void)index, (void)host, (void)n_options, (void)option_size;
  if (!s) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  strncpy(s->fault, options[0].value.s, sizeof s->fault - 1);
  s->table.base.validate = validate, s->table.base.bind = bind_run;
  s->table.base.seq_open = seq_open, s->table.base.seq_fork = seq_fork;
  s->table.base.seq_truncate = seq_truncate, s->table.base.seq_close = seq_close;
  s->table.limits = limits, s->table.select = select_none;
  *out = &s->table.base;
  return KVASIR_OK;
}
