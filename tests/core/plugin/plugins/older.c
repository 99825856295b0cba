/* A selector as an older minor would have built it: every struct of its own ends early, and what
 * lies behind the end is no zero.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#define DESCRIBED_BY_TEST
#include "common.h"

#define OLD_SCHEMA_BYTES offsetof(kvasir_option_schema, group)

/* Two options with nothing between them, and pointers to nowhere behind the last. */
static union {
  unsigned char bytes[2 * OLD_SCHEMA_BYTES + 64];
  uint64_t align;
} schema;

static kvasir_desc plugin_desc = {.struct_size = sizeof plugin_desc,
                                  .kind = TEST_KIND,
                                  .id = TEST_ID,
                                  .version = "1.2.3",
                                  .options = (const kvasir_option_schema*)(const void*)&schema,
                                  .n_options = 2,
                                  .option_size = OLD_SCHEMA_BYTES};

__attribute__((constructor)) static void fill_schema(void) {
  static const char* const keys[] = {"budget_tokens", "stride"};
  memset(schema.bytes, 0xff, sizeof schema.bytes);
  for (int i = 0; i < 2; ++i) {
    kvasir_option_schema option = KVASIR_INT_OPTION(keys[i], "tokens", "an option", 7, 1, 100);
    option.struct_size = OLD_SCHEMA_BYTES;
    memcpy(schema.bytes + i * OLD_SCHEMA_BYTES, &option, OLD_SCHEMA_BYTES);
  }
}

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->max_units = 32;
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  const size_t table_size = offsetof(kvasir_selector, limits) + sizeof(void (*)(void));
  kvasir_selector* s = test_instance(sizeof *s, (uint32_t)table_size, &plugin_desc);
  (void)index, (void)host, (void)options, (void)option_size;
  if (!s) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  if (n_options != 2) return kvasir_fail(err, KVASIR_ERR_INVALID, "two options are mine");
  s->limits = limits;
  memset((char*)s + table_size, 0xff, sizeof *s - table_size);
  *out = &s->base;
  return KVASIR_OK;
}
