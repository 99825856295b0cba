/* What every test plugin shares: entry, table, and the faults that are chosen at build time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVASIR_TEST_PLUGIN_COMMON_H
#define KVASIR_TEST_PLUGIN_COMMON_H

#include <kvasir/c_plugin.h>
#include <kvasir/kvasir.h>
#include <stdlib.h>
#include <string.h>

/* Build-time faults (-DFAULT_X): what a loader meets before any instance exists. */
#ifndef TEST_ID
#define TEST_ID "org.test.plugin"
#endif
#ifndef NOTE_ID
#define NOTE_ID TEST_ID
#endif
#ifndef NOTE_MAJOR
#define NOTE_MAJOR KVASIR_ABI_MAJOR
#endif
#ifndef NOTE_MINOR
#define NOTE_MINOR KVASIR_ABI_MINOR
#endif
#ifndef NOTE_REQUIRED_MINOR
#define NOTE_REQUIRED_MINOR KVASIR_ABI_MINOR
#endif
#ifndef NOTE_CPU
#define NOTE_CPU 0u
#endif
#ifndef NOTE_DRAFTS
#define NOTE_DRAFTS ""
#endif
#ifndef NOTE_KINDS
#define NOTE_KINDS KVASIR_KIND_BIT(TEST_KIND)
#endif
#ifndef NOTE_VERSION
#define NOTE_VERSION "1.2.3"
#endif
#ifndef NOTE_DESC_BYTES
#define NOTE_DESC_BYTES KVASIR_PLUGIN_NOTE_DESC_BYTES
#endif
#ifndef NOTE_NAME
#define NOTE_NAME KVASIR_NOTE_NAME
#endif
#ifndef ANSWERED_MINOR
#define ANSWERED_MINOR KVASIR_ABI_MINOR
#endif
#ifndef TABLE_BYTES
#define TABLE_BYTES sizeof(kvasir_plugin)
#endif
#ifndef DESC_BYTES
#define DESC_BYTES sizeof(kvasir_desc)
#endif
#ifndef PLUGIN_COUNT
#define PLUGIN_COUNT 1u
#endif
#ifndef DESCRIBED_KIND
#define DESCRIBED_KIND TEST_KIND
#endif
#ifndef TEST_NEEDS
#define TEST_NEEDS 0u
#endif
#ifndef TEST_PROVIDES
#define TEST_PROVIDES 0u
#endif
#ifndef TEST_CAPS
#define TEST_CAPS 0u
#endif
#ifndef TEST_DTYPES
#define TEST_DTYPES 0u
#endif

#ifndef NO_NOTE
__attribute__((used, section(KVASIR_NOTE_SECTION), aligned(4))) static const kvasir_note note = {
    8u,
    NOTE_DESC_BYTES,
    KVASIR_NOTE_TYPE,
    NOTE_NAME,
    NOTE_MAJOR,
    NOTE_MINOR,
    NOTE_REQUIRED_MINOR,
    NOTE_KINDS,
    NOTE_CPU,
    0u,
    NOTE_VERSION,
    NOTE_ID,
    NOTE_DRAFTS};
#endif

/* A string option `fault` for plugins that are told where to fail. */
#define TEXT_OPTION(key_, help_)                                                            \
  {                                                                                         \
    .struct_size = sizeof(kvasir_option_schema), .type = KVASIR_OPTION_STRING, .key = key_, \
    .help = help_, .def = {                                                                 \
      .type = KVASIR_OPTION_STRING,                                                         \
      .s = ""                                                                               \
    }                                                                                       \
  }

/* The description, with the options of a table, or none (null, 0). */
#define TEST_DESC(options_, n_)                                                        \
  static const kvasir_desc plugin_desc = {.struct_size = DESC_BYTES,                   \
                                          .kind = DESCRIBED_KIND,                      \
                                          .id = TEST_ID,                               \
                                          .version = "1.2.3",                          \
                                          .name = "Test",                              \
                                          .vendor = "Tests",                           \
                                          .license = "Apache-2.0",                     \
                                          .summary = "A test.",                        \
                                          .options = options_,                         \
                                          .n_options = n_,                             \
                                          .option_size = sizeof(kvasir_option_schema), \
                                          .caps = TEST_CAPS,                           \
                                          .needs = TEST_NEEDS,                         \
                                          .provides = TEST_PROVIDES,                   \
                                          .dtypes = TEST_DTYPES}

static inline kvasir_status test_bind(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)self, (void)g, (void)err;
  return KVASIR_OK;
}
/* An instance of `size` bytes that begins with its table and does nothing yet; null: no memory. */
static inline void* test_instance(size_t size, uint32_t table_size, const kvasir_desc* desc) {
  kvasir_instance* base = calloc(1, size);
  if (!base) return 0;
  base->struct_size = table_size;
  base->kind = TEST_KIND;
  base->self = base;
  base->desc = desc;
  base->bind = test_bind;
  base->destroy = free;
  return base;
}

#ifdef DESCRIBED_BY_TEST
static kvasir_desc plugin_desc;
#else
static const kvasir_desc plugin_desc;
#endif
static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err);

/* For what only has options: a selector that sets no limit and selects nothing. */
#ifdef IDLE_SELECTOR
static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)out, (void)err;
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  kvasir_selector* s = test_instance(sizeof *s, sizeof *s, &plugin_desc);
  (void)index, (void)host, (void)options, (void)n_options, (void)option_size;
  if (!s) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  s->limits = limits;
  *out = &s->base;
  return KVASIR_OK;
}
#endif

static uint32_t plugin_count(void) { return PLUGIN_COUNT; }

static const kvasir_desc* plugin_describe(uint32_t index) {
#ifdef NULL_DESC
  (void)index;
  return 0;
#else
  return index == 0 ? &plugin_desc : 0;
#endif
}

static const kvasir_plugin plugin_table = {TABLE_BYTES,   0, plugin_count, plugin_describe,
                                           plugin_create, 0};

#ifdef NO_SYMBOL
const kvasir_plugin* another_symbol(void);
const kvasir_plugin* another_symbol(void) { return &plugin_table; }
#else
kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) {
  (void)host, (void)request;
  (void)err;
#ifdef ENTRY_FAILS
  return kvasir_fail(err, KVASIR_ERR_VERSION, "the moon is in the wrong phase");
#elif defined(ENTRY_SILENT)
  return KVASIR_ERR_INTERNAL;
#else
  request->abi_minor = ANSWERED_MINOR;
#ifndef NULL_TABLE
  request->plugin = &plugin_table;
#endif
  return KVASIR_OK;
#endif
}
#endif

#endif
