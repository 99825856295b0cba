/* A selector whose options are alternatives: three ways to say a budget, one of which another
 * option refines, and two ways to say what is recent. The macros spoil the groups at build time.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_SELECTOR
#define IDLE_SELECTOR
#include "common.h"

#ifndef BLOCKS_GROUP
#define BLOCKS_GROUP "budget"
#endif
#ifndef BLOCKS_FLAGS
#define BLOCKS_FLAGS KVASIR_OPTION_OPTIONAL
#endif
#ifndef SHARE_WITH
#define SHARE_WITH "ratio"
#endif

#define INT(v) \
  { .type = KVASIR_OPTION_INT, .i = v }
#define OPTION(key_, flags_, group_)                                                   \
  .struct_size = sizeof(kvasir_option_schema), .type = KVASIR_OPTION_INT, .key = key_, \
  .flags = flags_, .group = group_, .def = INT(9), .min = INT(1), .max = INT(1000)

static const char* const blocks_aliases[] = {"n_blocks", 0};
static const kvasir_option_schema schema[] = {
    {OPTION("budget_tokens", 0, "budget")},
    {OPTION("budget_blocks", BLOCKS_FLAGS, BLOCKS_GROUP), .aliases = blocks_aliases},
    {OPTION("ratio", KVASIR_OPTION_OPTIONAL, "budget")},
    {OPTION("recent", KVASIR_OPTION_OPTIONAL, "recency")},
    {OPTION("recent_share", KVASIR_OPTION_OPTIONAL, "recency"), .with = SHARE_WITH},
    {OPTION("alone", 0, 0)}};
TEST_DESC(schema, sizeof schema / sizeof schema[0]);
