/* A selector that misbehaves on request, to prove that the host notices and goes on: option `fault`
 * says how, `from_call` from which select() (or, with `where`, observe(), evict_plan(), update())
 * on; before that and with fault = none it is honest: every second candidate token or block.
 * Probe: 0 = calls of the chosen function. SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

static const char* const faults[] = {
    "none",           "out_of_range", "unsorted",        "duplicate",
    "too_many",       "nan_weight",   "inf_weight",      "error",
    "error_no_text",  "fallback",     "again",           "capacity_for_ever",
    "unknown_status", "rows_missing", "offsets_descend", "unknown_row_flag",
    "finer_scope"};
enum {
  none,
  out_of_range,
  unsorted,
  duplicate,
  too_many,
  nan_weight,
  inf_weight,
  error,
  error_no_text,
  fallback,
  again,
  capacity_for_ever,
  unknown_status,
  rows_missing,
  offsets_descend,
  unknown_row_flag,
  finer_scope
};
static const char* const places[] = {"select", "observe", "evict_plan", "update"};
enum { in_select, in_observe, in_evict_plan, in_update };
static const char* const units[] = {"block", "token"};

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t fault, where, unit, from_call, calls;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->unit = s->unit;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  if (s->where == in_observe) {
    out->mass_at = KVASIR_MASS_AT_DECODE;
    out->mass_level = KVASIR_MASS_ROWS;
  }
  if (s->where == in_evict_plan) out->plan_at = KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_STEP_END;
  out->action = KVASIR_ACTION_RESTRICT;
  return KVASIR_OK;
}
static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  (void)self, (void)out, (void)err;
  return KVASIR_OK;
}

/* Counts a call of `where`; the fault that is due, or none. */
static uint32_t due(struct self* s, uint32_t where) {
  if (where != s->where) return none;
  return ++s->calls > s->from_call ? s->fault : none;
}
static kvasir_status answer(uint32_t fault, kvasir_err* err) {
  switch (fault) {
    case error:
      return fake_fail(err, KVASIR_ERR_INTERNAL, "broken on request");
    case error_no_text:
      return KVASIR_ERR_INTERNAL;
    case fallback:
      return KVASIR_FALLBACK;
    case again:
      return KVASIR_AGAIN;
    case unknown_status:
      return 4711;
    default:
      return KVASIR_OK;
  }
}

static kvasir_status fill(struct self* s, const kvasir_step* step, kvasir_selection* out,
                          uint32_t fault, kvasir_err* err) {
  struct fake_out rows = fake_begin(out);
  if (fault == nan_weight || fault == inf_weight) out->weight_width = 1;
  if (fault == finer_scope) out->scope = KVASIR_SCOPE_Q_HEAD;
  const float weight = fault == nan_weight ? NAN : fault == inf_weight ? INFINITY : 0.0f;
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      for (uint32_t i = 0; i < range.n; i += 2) fake_put(&rows, fake_at(&range, i), weight);
      if (fault == out_of_range) fake_put(&rows, fake_row(step, r)->unit_end, weight);
      if (fault == duplicate && range.n)
        fake_put(&rows, fake_at(&range, (range.n - 1) / 2 * 2), weight);
      if (fault == unsorted && range.n) fake_put(&rows, fake_at(&range, 0), weight);
      if (fault == unknown_row_flag) out->row_flags[out->n_rows] = 77;
      fake_end_row(&rows);
    }
  if (fault == rows_missing) out->n_rows -= 1;
  if (fault == offsets_descend) out->row_offsets[0] = out->row_offsets[out->n_rows] + 1;
  if (fault == too_many) out->row_offsets[out->n_rows] = out->capacity + 1;
  if (fault == capacity_for_ever) {
    out->needed = out->capacity + 1;
    return fake_fail(err, KVASIR_ERR_CAPACITY, "never enough");
  }
  return fake_end(&rows, err);
}
static kvasir_status select_units(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                  kvasir_selection* out, kvasir_err* err) {
  const uint32_t fault = due(self, in_select);
  const kvasir_status status = answer(fault, err);
  (void)in;
  return status == KVASIR_OK ? fill(self, step, out, fault, err) : status;
}
static kvasir_status evict_plan(void* self, const kvasir_step* step, kvasir_selection* out,
                                kvasir_err* err) {
  const uint32_t fault = due(self, in_evict_plan);
  const kvasir_status status = answer(fault, err);
  return status == KVASIR_OK ? fill(self, step, out, fault, err) : status;
}
static kvasir_status observe(void* self, const kvasir_step* step, const kvasir_mass* mass,
                             kvasir_err* err) {
  (void)step, (void)mass;
  return answer(due(self, in_observe), err);
}
static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  (void)step, (void)items, (void)n, (void)size;
  return answer(due(self, in_update), err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item == 0 ? ((struct self*)self)->calls : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->fault = fake_u32(o, "fault"), s->where = fake_u32(o, "where");
  s->unit = fake_u32(o, "unit"), s->from_call = fake_u32(o, "from_call");
  s->t.limits = limits, s->t.select = select_units;
  if (s->where == in_observe) s->t.observe = observe;
  if (s->where == in_evict_plan) s->t.evict_plan = evict_plan;
  if (s->where == in_update) s->t.update = update, s->t.layout = layout;
}
static const kvasir_option_schema options[] = {
    FAKE_ENUM("fault", faults, sizeof faults / sizeof *faults, "what goes wrong"),
    FAKE_ENUM("where", places, sizeof places / sizeof *places, "in which function"),
    FAKE_ENUM("unit", units, 2, "of its rows"),
    FAKE_INT("from_call", 0, 0, 1 << 30, "honest calls before that")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.bad_selector", "misbehaves on request", 0, 0, 0,
            options)
