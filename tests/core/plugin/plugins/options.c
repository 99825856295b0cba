/* A selector with one option of every type; the macros below spoil the schema at build time.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#define IDLE_SELECTOR
#include "common.h"

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

#define OPTION(type_, key_, help_) \
  .struct_size = SCHEMA_BYTES, .type = type_, .key = key_, .help = help_
#define INT(type_, v) \
  { .type = type_, .i = v }
#define REAL(v) \
  { .type = KVASIR_OPTION_FLOAT, .f = v }

static const char* const budget_aliases[] = {"top_k_tokens", "topk", 0};
static const char* const old_aliases[] = {"old_ratio", 0};
static const char* const methods[] = {"mean", "max", "softmax_sum"};
static const int64_t list_default[] = {1, 2};

static const kvasir_option_schema schema[] = {
    {OPTION(FIRST_TYPE, FIRST_KEY, "tokens selected"), .flags = FIRST_FLAGS,
     .aliases = FIRST_ALIASES, .unit = "tokens", .def = INT(KVASIR_OPTION_INT, FIRST_DEFAULT),
     .min = INT(KVASIR_OPTION_INT, 1), .max = INT(KVASIR_OPTION_INT, 100000)},
    {OPTION(KVASIR_OPTION_BOOL, "exact", "exactly"), .def = INT(KVASIR_OPTION_BOOL, 1)},
    {OPTION(KVASIR_OPTION_FLOAT, "ratio", "say budget_tokens"), .flags = KVASIR_OPTION_DEPRECATED,
     .aliases = old_aliases, .def = REAL(0.5), .min = REAL(0.0), .max = REAL(1.0)},
    {OPTION(KVASIR_OPTION_ENUM, "method", "reduction"), .n_enum = 3, .enum_names = methods,
     .def = INT(KVASIR_OPTION_ENUM, 1)},
    {OPTION(KVASIR_OPTION_BYTES, "memory", "memory"), .unit = "bytes",
     .def = INT(KVASIR_OPTION_BYTES, 1024)},
    {OPTION(KVASIR_OPTION_PATH, "table", "a file"), .flags = KVASIR_OPTION_OPTIONAL},
    {OPTION(KVASIR_OPTION_INT_LIST, "levels", "levels"),
     .def = {.type = KVASIR_OPTION_INT_LIST, .n = 2, .list = list_default},
     .min = INT(KVASIR_OPTION_INT, 0), .max = INT(KVASIR_OPTION_INT, 9)},
    TEXT_OPTION("label", "any text")};
TEST_DESC(schema, sizeof schema / sizeof schema[0]);
