/* Proves: a selector's own slab (layout, update), prefill(), speculate() with FINAL,
 * KVASIR_NEED_INPUT, observe() at level ROWS, evict_plan() with DROP, state that forks. Keeps the
 * first partial_dims elements of every key and picks the tokens whose partial logit is near the
 * best. Probe: 0 = prompt queries seen, 1 = tokens seen attended, 2 + kv_head * head_dim + d =
 * column sum of |q| over the prompt. SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs; /* per layer: queries, attended, sums[kv][dim], counts[kv][max_context] */
  void* work;
  uint32_t dims, cap, pool_limit;
  float alpha;
};
static size_t layer_floats(const struct self* s) {
  return 2 + (size_t)s->g.n_kv_heads * (s->g.head_dim + s->g.max_context);
}
static float* layer_state(struct self* s, uint64_t seq, uint32_t layer) {
  float* state = fake_state(&s->seqs, seq);
  return state ? state + layer * layer_floats(s) : NULL;
}
static float* counts(struct self* s, float* state, uint32_t kv_head) {
  return state + 2 + (size_t)s->g.n_kv_heads * s->g.head_dim + (size_t)kv_head * s->g.max_context;
}
static void cut(struct self* s, float* state, uint32_t kv_len) {
  for (uint32_t layer = 0; layer < s->g.n_layers; ++layer)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h)
      for (uint32_t t = kv_len; t < s->g.max_context; ++t)
        counts(s, state + layer * layer_floats(s), h)[t] = 0;
}
FAKE_SEQUENCES(cut)

static kvasir_status ready(struct self* s, kvasir_err* err) {
  if (s->dims > s->g.head_dim)
    return fake_fail(err, KVASIR_ERR_INVALID, "partial_dims exceeds head_dim");
  s->seqs.bytes = s->g.n_layers * layer_floats(s) * sizeof(float);
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->unit = KVASIR_UNIT_TOKEN;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  out->max_units = s->cap;
  out->speculate_ahead = 1;
  out->plan_at = s->pool_limit ? KVASIR_PLAN_AT_STEP_END : 0;
  out->action = KVASIR_ACTION_EVICT;
  out->mass_at = KVASIR_MASS_AT_DECODE;
  out->mass_level = KVASIR_MASS_ROWS;
  out->mass_reduce = KVASIR_MASS_SUM_KV_HEAD;
  out->prefill_last_queries = UINT32_MAX;
  return KVASIR_OK;
}

static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->record_bytes = (uint64_t)s->g.block_size * s->dims * sizeof(float);
  out->format = s->dims;
  return KVASIR_OK;
}

static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  struct self* s = self;
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_update_item* item = fake_item(items, i, size);
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      float* record = fake_record(step->slab, item->row, h, item->block);
      if (!record) return fake_fail(err, KVASIR_ERR_INTERNAL, "update() of a null page");
      for (uint32_t t = item->first_new; t < item->first_new + item->n_new; ++t)
        for (uint32_t d = 0; d < s->dims; ++d)
          record[t * s->dims + d] = fake_key(&s->g, item->lease, h, t, d);
    }
  }
  return KVASIR_OK;
}

static kvasir_status prefill(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                             kvasir_err* err) {
  struct self* s = self;
  for (uint32_t r = 0; r < step->n_rows; ++r) {
    const kvasir_step_row* row = fake_row(step, r);
    float* state = layer_state(s, row->seq, step->layer);
    if (!state) return fake_fail(err, KVASIR_ERR_INVALID, "prefill() of an unknown sequence");
    state[0] += (float)row->n_q;
    for (uint32_t i = 0; i < row->n_q; ++i)
      for (uint32_t h = 0; h < s->g.n_q_heads; ++h)
        for (uint32_t d = 0; d < s->g.head_dim; ++d)
          state[2 + h / (s->g.n_q_heads / s->g.n_kv_heads) * s->g.head_dim + d] +=
              fabsf(fake_q(&in->q, row->q_begin + i, h)[d]);
  }
  return KVASIR_OK;
}

/* Largest partial logit of a token over the query heads of the group. */
static float best_logit(const struct self* s, const kvasir_step* step, const kvasir_sel_in* in,
                        uint32_t r, uint32_t kv_head, uint32_t token) {
  const uint32_t group = s->g.n_q_heads / s->g.n_kv_heads;
  const float* record = fake_record(step->slab, r, kv_head, token / s->g.block_size);
  float best = -INFINITY;
  for (uint32_t h = kv_head * group; record && h < (kv_head + 1) * group; ++h) {
    const float* q = fake_q(&in->q, fake_row(step, r)->q_begin, h);
    float dot = 0;
    for (uint32_t d = 0; d < s->dims; ++d)
      dot += q[d] * record[token % s->g.block_size * s->dims + d];
    best = fmaxf(best, dot * s->g.softmax_scale);
  }
  return best;
}

static kvasir_status speculate(void* self, const kvasir_step* step, uint32_t target,
                               const kvasir_sel_in* in, kvasir_selection* out, kvasir_err* err) {
  struct self* s = self;
  if (target != step->layer + 1 || in->x.data == NULL || in->x.rank != 2)
    return fake_fail(err, KVASIR_ERR_INVALID, "speculate() wants x, one layer ahead");
  struct fake_out rows = fake_begin(out);
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      float* score = FAKE_WORK(s, float, range.n * 2);
      uint8_t* keep = (uint8_t*)(score + range.n);
      float best = -INFINITY;
      for (uint32_t i = 0; i < range.n; ++i)
        best = fmaxf(best, score[i] = best_logit(s, step, in, r, h, fake_at(&range, i)));
      fake_top(score, range.n, s->cap, keep);
      for (uint32_t i = 0; i < range.n; ++i) keep[i] = keep[i] && score[i] >= best - s->alpha;
      fake_put_marked(&rows, &range, keep);
    }
  out->flags = KVASIR_SELECTION_FINAL;
  return fake_end(&rows, err);
}

static kvasir_status observe(void* self, const kvasir_step* step, const kvasir_mass* mass,
                             kvasir_err* err) {
  struct self* s = self;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      float* state = layer_state(s, fake_row(step, r)->seq, step->layer);
      const uint64_t* at = mass->row_offsets + (uint64_t)r * s->g.n_kv_heads + h;
      for (uint64_t i = at[0]; state && i < at[1]; ++i, ++state[1]) {
        const uint32_t token = mass->index ? mass->index[i] : (uint32_t)(i - at[0]);
        if (token >= s->g.max_context) return fake_fail(err, KVASIR_ERR_INVALID, "token too large");
        counts(s, state, h)[token] += 1;
      }
    }
  return KVASIR_OK;
}

static kvasir_status evict_plan(void* self, const kvasir_step* step, kvasir_selection* out,
                                kvasir_err* err) {
  struct self* s = self;
  struct fake_out rows = fake_begin(out);
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      float* state = layer_state(s, fake_row(step, r)->seq, step->layer);
      float* rarity = FAKE_WORK(s, float, range.n * 2);
      uint8_t* lose = (uint8_t*)(rarity + range.n);
      for (uint32_t i = 0; i < range.n; ++i)
        rarity[i] = state ? -counts(s, state, h)[fake_at(&range, i)] : 0;
      fake_top(rarity, range.n, range.n > s->pool_limit ? range.n - s->pool_limit : 0, lose);
      fake_put_marked(&rows, &range, lose);
    }
  out->flags = KVASIR_SELECTION_DROP;
  return fake_end(&rows, err);
}

static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  struct self* s = self;
  const float* state = layer_state(s, seq, layer);
  return state && item < 2 + s->g.n_kv_heads * s->g.head_dim ? (double)state[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->dims = fake_u32(o, "partial_dims"), s->cap = fake_u32(o, "cap");
  s->pool_limit = fake_u32(o, "pool_limit"), s->alpha = (float)fake_option(o, "alpha").f;
  s->t.limits = limits, s->t.layout = layout, s->t.update = update, s->t.prefill = prefill;
  s->t.speculate = speculate, s->t.observe = observe, s->t.evict_plan = evict_plan;
  FAKE_SEQUENCE_SLOTS(s->t.base);
}
static const kvasir_option_schema options[] = {
    FAKE_INT("partial_dims", 4, 1, 4096, "elements of each key that are kept"),
    FAKE_INT("cap", 32, 1, 1 << 30, "most tokens per kv head"),
    FAKE_FLOAT("alpha", 4.0, 0.0, 1e9, "logits further below the best are left out"),
    FAKE_INT("pool_limit", 0, 0, 1 << 30, "candidates kept per kv head; 0 = all")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.infinigen", "partial keys, one layer ahead",
            KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
            KVASIR_NEED_INPUT | KVASIR_NEED_TOKEN_ROWS, 0, options)
