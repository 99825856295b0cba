/* Proves: a representative with open_bytes that accumulates attention mass of the window (items
 * with KVASIR_ITEM_MASS, KVASIR_PART_WINDOW) and builds its record when the block leaves the window
 * (KVASIR_LAYOUT_WANT_FINAL): per query head the mean of its repr_topk most attended keys.
 * Probe: 0 = mass items, 1 = final items, 2 = blocks scored without a record.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_representative t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t repr_topk, group, seen[3];
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)err;
  s->group = s->g.n_q_heads / s->g.n_kv_heads;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->flags = KVASIR_LAYOUT_WANT_FINAL;
  out->record_bytes = (uint64_t)s->group * s->g.head_dim * sizeof(float);
  out->open_bytes = (uint64_t)s->group * s->g.block_size * sizeof(float);
  out->format = 1;
  out->mass_at = KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE;
  out->mass_part = KVASIR_PART_WINDOW;
  out->mass_last_queries = UINT32_MAX;
  return KVASIR_OK;
}

/* record[j] = mean of the repr_topk keys of the block with the largest mass for head j. */
static void finish(struct self* s, const kvasir_update_item* item, uint32_t kv_head,
                   const float* mass, float* record) {
  uint8_t* keep = FAKE_WORK(s, uint8_t, item->n_tokens);
  const uint32_t n = fake_top(mass, item->n_tokens, s->repr_topk, keep);
  for (uint32_t d = 0; d < s->g.head_dim; ++d) {
    record[d] = 0;
    for (uint32_t t = 0; t < item->n_tokens; ++t)
      if (keep[t]) record[d] += fake_key(&s->g, item->lease, kv_head, t, d) / (float)n;
  }
}

static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  struct self* s = self;
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_update_item* item = fake_item(items, i, size);
    s->seen[0] += (item->flags & KVASIR_ITEM_MASS) != 0;
    s->seen[1] += (item->flags & KVASIR_ITEM_FINAL) != 0;
    if (((item->flags & KVASIR_ITEM_MASS) != 0) != (item->mass != NULL))
      return fake_fail(err, KVASIR_ERR_INVALID, "flag and mass of an item disagree");
    for (uint32_t h = 0; h < s->g.n_q_heads; ++h) {
      const uint32_t kv_head = h / s->group, j = h % s->group;
      float* open = fake_open_record(step->slab, item->row, kv_head, item->block);
      float* record = fake_record(step->slab, item->row, kv_head, item->block);
      if (!open || !record) return fake_fail(err, KVASIR_ERR_INTERNAL, "update() of a null page");
      open += j * s->g.block_size;
      for (uint32_t t = 0; item->mass && t < item->n_tokens; ++t)
        open[t] += item->mass[(uint64_t)h * item->n_tokens + t];
      if (item->flags & KVASIR_ITEM_FINAL)
        finish(s, item, kv_head, open, record + j * s->g.head_dim);
    }
  }
  return KVASIR_OK;
}

static kvasir_status score(void* self, const kvasir_step* step, const kvasir_score_in* in,
                           kvasir_score_out* out, kvasir_err* err) {
  struct self* s = self;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_q_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h / s->group, s->g.n_kv_heads);
      const uint64_t* at = out->offsets + (uint64_t)r * s->g.n_q_heads + h;
      const float* q = fake_q(&in->q, r, h);
      if (at[1] - at[0] != range.n)
        return fake_fail(err, KVASIR_ERR_INVALID, "offsets and candidates differ in number");
      for (uint32_t i = 0; i < range.n; ++i) {
        const float* record = fake_record(step->slab, r, h / s->group, fake_at(&range, i));
        float dot = 0;
        for (uint32_t d = 0; record && d < s->g.head_dim; ++d)
          dot += q[d] * record[h % s->group * s->g.head_dim + d];
        s->seen[2] += record == NULL;
        out->value[at[0] + i] = dot;
      }
    }
  return KVASIR_OK;
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item < 3 ? ((struct self*)self)->seen[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->repr_topk = fake_u32(o, "repr_topk");
  s->t.layout = layout, s->t.update = update, s->t.score = score;
}
static const kvasir_option_schema options[] = {
    FAKE_INT("repr_topk", 4, 1, 4096, "keys averaged per query head")};
FAKE_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.test.infllm_rep", "mean of the most attended keys",
            0, KVASIR_NEED_MASS, KVASIR_PROVIDE_SCORES, options)
