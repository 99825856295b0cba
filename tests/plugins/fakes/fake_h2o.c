/* Proves: a selector without select(), whose only state is a slab written in observe()
 * (KVASIR_LIMIT_OBSERVE_WRITES_SLAB), fed by attention mass of every query, prompt and decode;
 * evict_plan() that keeps (P5) and that drops (D5). hh_size tokens of largest mass stay per kv
 * head. Probe: 0 = plans made for the layer. SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t hh_size;
  uint32_t n_plans[256];
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  return s->g.n_layers <= 256 ? KVASIR_OK : fake_fail(err, KVASIR_ERR_UNSUPPORTED, "> 256 layers");
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->unit = KVASIR_UNIT_TOKEN;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  out->flags = KVASIR_LIMIT_OBSERVE_WRITES_SLAB;
  out->plan_at = KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_STEP_END;
  out->action = KVASIR_ACTION_EVICT;
  out->mass_at = KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE;
  out->mass_level = KVASIR_MASS_TOKEN;
  out->mass_reduce = KVASIR_MASS_SUM_KV_HEAD;
  out->mass_part = KVASIR_PART_ALL;
  out->mass_last_queries = UINT32_MAX;
  return KVASIR_OK;
}
static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  (void)err;
  out->record_bytes =
      ((struct self*)self)->g.block_size * sizeof(float); /* sum of mass per token */
  return KVASIR_OK;
}
static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  (void)self, (void)step, (void)items, (void)n, (void)size, (void)err; /* keys do not matter */
  return KVASIR_OK;
}

static float* sum_of(struct self* s, const kvasir_step* step, uint32_t r, uint32_t h, uint32_t t) {
  float* record = fake_record(step->slab, r, h, t / s->g.block_size);
  return record ? record + t % s->g.block_size : NULL;
}
static kvasir_status observe(void* self, const kvasir_step* step, const kvasir_mass* mass,
                             kvasir_err* err) {
  struct self* s = self;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const uint64_t* at = mass->row_offsets + (uint64_t)r * s->g.n_kv_heads + h;
      for (uint64_t i = at[0]; i < at[1]; ++i) {
        float* sum = sum_of(s, step, r, h, mass->index ? mass->index[i] : (uint32_t)(i - at[0]));
        if (!sum) return fake_fail(err, KVASIR_ERR_INTERNAL, "observe() of a null page");
        *sum += mass->value[i];
      }
    }
  return KVASIR_OK;
}

static kvasir_status evict_plan(void* self, const kvasir_step* step, kvasir_selection* out,
                                kvasir_err* err) {
  struct self* s = self;
  const int drop = step->moment == KVASIR_D5; /* the losers are fewer there */
  struct fake_out rows = fake_begin(out);
  s->n_plans[step->layer] += 1;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      float* value = FAKE_WORK(s, float, range.n * 2);
      uint8_t* keep = (uint8_t*)(value + range.n);
      for (uint32_t i = 0; i < range.n; ++i) {
        const float* sum = sum_of(s, step, r, h, fake_at(&range, i));
        value[i] = sum ? *sum : 0;
      }
      fake_top(value, range.n, s->hh_size, keep);
      for (uint32_t i = 0; drop && i < range.n; ++i) keep[i] = !keep[i];
      fake_put_marked(&rows, &range, keep);
    }
  out->flags = drop ? KVASIR_SELECTION_DROP : 0;
  return fake_end(&rows, err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq;
  return item == 0 && layer < 256 ? ((struct self*)self)->n_plans[layer] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->hh_size = fake_u32(o, "hh_size");
  s->t.limits = limits, s->t.layout = layout, s->t.update = update;
  s->t.observe = observe, s->t.evict_plan = evict_plan;
}
static const kvasir_option_schema options[] = {
    FAKE_INT("hh_size", 32, 0, 1 << 30, "tokens kept per kv head beside sink and window")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.h2o", "keeps tokens of most attention mass", 0,
            KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ROWS, 0, options)
