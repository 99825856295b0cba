/* Proves: a second selector in a chain: consumes step->candidates (tokens, after a block selector
 * whose rows the host has expanded) and returns a subset of them, from int8 shadow keys in its own
 * slab (KVASIR_LAYOUT_SEALED_ONLY): per query head the fewest tokens whose softmax, within the
 * candidates, reaches p; the union over the group. A null list means the whole range.
 * Probe: 0 = selections with a list, 1 = without one, 2 = tokens kept.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  float p;
  uint32_t group, seen[3];
};
static uint32_t token_bytes(const struct self* s) { return 4 + (s->g.head_dim + 3) / 4 * 4; }
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)err;
  s->group = s->g.n_q_heads / s->g.n_kv_heads;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->unit = KVASIR_UNIT_TOKEN;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  return KVASIR_OK;
}
static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->flags = KVASIR_LAYOUT_SEALED_ONLY | KVASIR_LAYOUT_CONTENT_ONLY;
  out->record_bytes = (uint64_t)s->g.block_size * token_bytes(s); /* per token: scale, int8 key */
  return KVASIR_OK;
}

static void shadow(const struct self* s, const kvasir_lease* lease, uint32_t kv_head, uint32_t t,
                   char* to) {
  float largest = 0, scale;
  for (uint32_t d = 0; d < s->g.head_dim; ++d)
    largest = fmaxf(largest, fabsf(fake_key(&s->g, lease, kv_head, t, d)));
  scale = largest / 127.0f;
  memcpy(to, &scale, sizeof scale);
  for (uint32_t d = 0; d < s->g.head_dim; ++d)
    ((int8_t*)to)[4 + d] =
        scale > 0 ? (int8_t)lrintf(fake_key(&s->g, lease, kv_head, t, d) / scale) : 0;
}
static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  struct self* s = self;
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_update_item* item = fake_item(items, i, size);
    for (uint32_t h = 0; h < s->g.n_kv_heads && (item->flags & KVASIR_ITEM_SEALED); ++h) {
      char* record = fake_record(step->slab, item->row, h, item->block);
      if (!record) return fake_fail(err, KVASIR_ERR_INTERNAL, "update() of a null page");
      for (uint32_t t = 0; t < item->n_tokens; ++t)
        shadow(s, item->lease, h, t, record + (size_t)t * token_bytes(s));
    }
  }
  return KVASIR_OK;
}

/* exp(logit - largest) of each candidate for one query head, from the shadow; their sum. */
static double weigh(struct self* s, const kvasir_step* step, uint32_t r, uint32_t q_head,
                    const float* q, const struct fake_range* range, float* weight) {
  float largest = -INFINITY;
  double sum = 0;
  for (uint32_t i = 0; i < range->n; ++i) {
    const uint32_t token = fake_at(range, i);
    const char* record = fake_record(step->slab, r, q_head / s->group, token / s->g.block_size);
    const char* key = record ? record + (size_t)(token % s->g.block_size) * token_bytes(s) : NULL;
    float scale = 0, dot = 0;
    if (key) memcpy(&scale, key, sizeof scale);
    for (uint32_t d = 0; key && d < s->g.head_dim; ++d) dot += q[d] * ((const int8_t*)key)[4 + d];
    weight[i] = s->g.softmax_scale * scale * dot;
    largest = fmaxf(largest, weight[i]);
  }
  for (uint32_t i = 0; i < range->n; ++i) sum += (double)(weight[i] = expf(weight[i] - largest));
  return sum;
}

static kvasir_status select_tokens(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                   kvasir_selection* out, kvasir_err* err) {
  struct self* s = self;
  struct fake_out rows = fake_begin(out);
  s->seen[step->candidates ? 0 : 1] += 1;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t kv_head = 0; kv_head < s->g.n_kv_heads; ++kv_head) {
      const struct fake_range range = fake_candidates(step, r, kv_head, s->g.n_kv_heads);
      float* weight = FAKE_WORK(s, float, range.n * 2);
      uint8_t* keep = (uint8_t*)(weight + range.n);
      memset(keep, 0, range.n);
      for (uint32_t h = kv_head * s->group; h < (kv_head + 1) * s->group; ++h) {
        const float* q = fake_q(&in->q, fake_row(step, r)->q_begin, h);
        double missing = s->p * weigh(s, step, r, h, q, &range, weight);
        for (uint32_t taken = 0; missing > 0 && taken < range.n; ++taken) {
          uint32_t best = 0;
          for (uint32_t i = 1; i < range.n; ++i)
            if (weight[i] > weight[best]) best = i;
          missing -= weight[best];
          weight[best] = -1; /* taken */
          s->seen[2] += !keep[best];
          keep[best] = 1;
        }
      }
      fake_put_marked(&rows, &range, keep);
    }
  return fake_end(&rows, err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item < 3 ? ((struct self*)self)->seen[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->p = (float)fake_option(o, "p").f;
  s->t.limits = limits, s->t.layout = layout, s->t.update = update, s->t.select = select_tokens;
}
static const kvasir_option_schema options[] = {
    FAKE_FLOAT("p", 0.9, 0.0, 1.0, "attention mass to reach within the candidates")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.twilight", "top-p among what is left", 0,
            KVASIR_NEED_TOKEN_ROWS, 0, options)
