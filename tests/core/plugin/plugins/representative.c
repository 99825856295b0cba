/* A representative that stores four bytes per block; RECORD_BYTES changes what it says.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_REPRESENTATIVE
#include "common.h"

#include <stdlib.h>

#ifndef RECORD_BYTES
#define RECORD_BYTES 4
#endif

static const kvasir_desc plugin_desc = {DESC_BYTES,
                                        DESCRIBED_KIND,
                                        TEST_ID,
                                        "1.2.3",
                                        "Test",
                                        "Tests",
                                        "Apache-2.0",
                                        0,
                                        "A test.",
                                        0,
                                        0,
                                        0,
                                        TEST_CAPS,
                                        TEST_NEEDS,
                                        KVASIR_PROVIDE_SCORES,
                                        TEST_DTYPES};

static kvasir_status rep_bind(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)self, (void)g, (void)err;
  return KVASIR_OK;
}
static void rep_destroy(void* self) { free(self); }
static kvasir_status rep_layout(void* self, kvasir_layout* out, kvasir_err* err) {
  (void)self, (void)err;
  out->record_bytes = RECORD_BYTES;
  return KVASIR_OK;
}
static kvasir_status rep_update(void* self, const kvasir_step* step,
                                const kvasir_update_item* items, uint32_t n, uint32_t item_size,
                                kvasir_err* err) {
  (void)self, (void)step, (void)items, (void)n, (void)item_size, (void)err;
  return KVASIR_OK;
}
static kvasir_status rep_score(void* self, const kvasir_step* step, const kvasir_score_in* in,
                               kvasir_score_out* out, kvasir_err* err) {
  (void)self, (void)step, (void)in, (void)out, (void)err;
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  (void)index, (void)host, (void)options, (void)n_options, (void)option_size;
  kvasir_representative* r = calloc(1, sizeof *r);
  if (!r) return fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  r->base.struct_size = sizeof *r;
  r->base.kind = KVASIR_KIND_REPRESENTATIVE;
  r->base.self = r;
  r->base.desc = &plugin_desc;
  r->base.bind = rep_bind;
  r->base.destroy = rep_destroy;
  r->layout = rep_layout;
  r->update = rep_update;
  r->score = rep_score;
  *out = &r->base;
  return KVASIR_OK;
}
