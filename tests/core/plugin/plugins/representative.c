/* A representative that stores four bytes per block; RECORD_BYTES changes what it says.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_REPRESENTATIVE
#define TEST_PROVIDES KVASIR_PROVIDE_SCORES
#include "common.h"

#include <math.h>

#ifndef RECORD_BYTES
#define RECORD_BYTES 4
#endif

#ifndef SCORE
#define SCORE -3.0f
#endif

TEST_DESC(0, 0);

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
  (void)self, (void)step, (void)in, (void)err;
  float* value = out->value.data;
  for (uint64_t i = 0; value && i < out->offsets[2]; ++i) value[i] = 1.0f;
  if (value) value[1] = SCORE;
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  (void)index, (void)host, (void)options, (void)n_options, (void)option_size;
  kvasir_representative* r = test_instance(sizeof *r, sizeof *r, &plugin_desc);
  if (!r) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  r->layout = rep_layout;
  r->update = rep_update;
  r->score = rep_score;
  *out = &r->base;
  return KVASIR_OK;
}
