/* Selector "strided": attends to every n-th candidate block. A whole plugin, to copy and change:
 * gcc -std=c11 -O2 -shared -fPIC -fvisibility=hidden strided.c -o strided.so
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <kvasir/c_plugin.h>
#include <kvasir/kvasir.h>
#include <stdlib.h>

static const kvasir_option_schema option =
    KVASIR_INT_OPTION("stride", "blocks", "from one attended block to the next", 4, 1, 1 << 20);

static const kvasir_desc desc = {.struct_size = sizeof desc,
                                 .kind = KVASIR_KIND_SELECTOR,
                                 .id = "org.example.strided",
                                 .version = "1.0.0",
                                 .summary = "every n-th candidate block",
                                 .options = &option,
                                 .n_options = 1,
                                 .option_size = sizeof option};

struct strided {
  kvasir_selector table; /* what the host sees; a null slot is not offered */
  uint32_t stride;
};

static kvasir_status bind_run(void* self, const kvasir_geometry* geometry, kvasir_err* err) {
  (void)self, (void)geometry, (void)err; /* nothing to allocate */
  return KVASIR_OK;
}

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->unit = KVASIR_UNIT_BLOCK;
  out->scope = KVASIR_SCOPE_SEQUENCE; /* one list per sequence, for all heads */
  return KVASIR_OK;
}

static kvasir_status select_blocks(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                   kvasir_selection* out, kvasir_err* err) {
  const kvasir_selection* list = step->candidates; /* of an earlier selector, or null: a range */
  uint64_t n = 0;
  (void)in;
  for (uint32_t r = 0; r < step->n_seqs; ++r) {
    const kvasir_step_seq* seq = kvasir_step_seq_at(step, r);
    const uint64_t begin = list ? list->list_offsets[r] : seq->unit_begin;
    const uint64_t end = list ? list->list_offsets[r + 1] : seq->unit_end;
    out->list_offsets[r] = n;
    for (uint64_t i = begin; i < end; i += ((struct strided*)self)->stride, ++n)
      if (n < out->capacity) out->index[n] = list ? list->index[i] : (uint32_t)i;
  }
  out->n_lists = step->n_seqs;
  out->list_offsets[step->n_seqs] = out->needed = n;
  return n <= out->capacity ? KVASIR_OK : kvasir_fail(err, KVASIR_ERR_CAPACITY, "too few places");
}

static kvasir_status create(uint32_t index, const kvasir_host* host, const kvasir_option* options,
                            uint32_t n_options, uint32_t option_size, kvasir_instance** out,
                            kvasir_err* err) {
  struct strided* self = calloc(1, sizeof *self);
  (void)index, (void)host, (void)n_options, (void)option_size;
  if (!self) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "strided: out of memory");
  self->stride = (uint32_t)options[0].value.i; /* in schema order, checked against min and max */
  self->table.base = (kvasir_instance){.struct_size = sizeof self->table,
                                       .kind = KVASIR_KIND_SELECTOR,
                                       .self = self,
                                       .desc = &desc,
                                       .bind = bind_run,
                                       .destroy = free};
  self->table.limits = limits;
  self->table.select = select_blocks;
  *out = &self->table.base;
  return KVASIR_OK;
}

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "org.example.strided\0", "1.0.0");
KVASIR_PLUGIN_ENTRY(desc, create)
