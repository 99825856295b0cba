/* A selector whose option `fault` says what is wrong with the instance that create() answers.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#include "common.h"

static const kvasir_option_schema schema[] = {TEXT_OPTION("fault", "what is wrong")};
TEST_DESC(schema, 1);

static kvasir_selector* volatile never_destroyed; /* volatile: no store to it is left out */

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->max_units = 32;
  return KVASIR_OK;
}
static void seq_close(void* self, const uint64_t* seqs, uint32_t n) {
  (void)self, (void)seqs, (void)n;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  const char* fault = options[0].value.s;
  (void)index, (void)host, (void)n_options, (void)option_size;
  if (strcmp(fault, "create") == 0) return kvasir_fail(err, KVASIR_ERR_INVALID, "I do not want to");
  if (strcmp(fault, "create.silent") == 0) return KVASIR_ERR_INTERNAL;
  if (strcmp(fault, "create.null") == 0) return KVASIR_OK;
  kvasir_selector* s = test_instance(sizeof *s, sizeof *s, &plugin_desc);
  if (!s) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  s->limits = limits;
  if (strcmp(fault, "table.small") == 0) s->base.struct_size = sizeof s->base;
  if (strcmp(fault, "table.tiny") == 0) {
    s->base.struct_size = 8;
    never_destroyed = s; /* the host cannot trust destroy; reachable, so no leak */
  }
  if (strcmp(fault, "table.short") == 0) { /* as built before anything behind limits() was known */
    s->base.struct_size = offsetof(kvasir_selector, limits) + sizeof s->limits;
    memset((char*)s + s->base.struct_size, 0xff, sizeof *s - s->base.struct_size);
  }
  if (strcmp(fault, "table.large") == 0) s->base.struct_size = sizeof *s + 64;
  if (strcmp(fault, "table.kind") == 0) s->base.kind = KVASIR_KIND_STORAGE;
  if (strcmp(fault, "table.desc") == 0) s->base.desc = 0;
  if (strcmp(fault, "table.bind") == 0) s->base.bind = 0;
  if (strcmp(fault, "table.seq") == 0) s->base.seq_close = seq_close; /* one of four */
  if (strcmp(fault, "table.limits") == 0) s->limits = 0;
  *out = &s->base;
  return KVASIR_OK;
}
