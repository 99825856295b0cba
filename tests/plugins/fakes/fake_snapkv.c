/* Proves: attention mass per query head of the prompt's last queries, votes kept as opaque state
 * per sequence (seq_open, seq_fork, seq_truncate, seq_close), one evict_plan() at the prompt's end
 * with either action. Votes are pooled over `kernel` tokens; `capacity` tokens stay per kv head.
 * Probe: 0 = plans made in the layer, 1 + token = votes for it, all heads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs; /* per layer: plans, prompt_end, votes[kv][max_context] */
  void* work;
  uint32_t capacity, window, kernel, action;
};
static size_t layer_floats(const struct self* s) {
  return 2 + (size_t)s->g.n_kv_heads * s->g.max_context;
}
static float* votes(struct self* s, uint64_t seq, uint32_t layer, uint32_t kv_head) {
  float* state = fake_state(&s->seqs, seq);
  return state ? state + layer * layer_floats(s) + 2 + (size_t)kv_head * s->g.max_context : NULL;
}
static void cut(struct self* s, float* state, uint32_t kv_len) {
  for (size_t i = 0; i < s->g.n_layers * layer_floats(s); ++i) {
    const size_t in_layer = i % layer_floats(s);
    if (in_layer > 1 && (in_layer - 2) % s->g.max_context >= kv_len) state[i] = 0;
  }
}
FAKE_SEQUENCES(cut)

static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)err;
  s->seqs.bytes = s->g.n_layers * layer_floats(s) * sizeof(float);
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->unit = KVASIR_UNIT_TOKEN;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  out->dense_below_tokens = s->capacity + s->window;
  out->plan_at = KVASIR_PLAN_AT_PROMPT_END;
  out->action = s->action == 0 ? KVASIR_ACTION_EVICT : KVASIR_ACTION_RESTRICT;
  out->mass_at = KVASIR_MASS_AT_PREFILL;
  out->mass_level = KVASIR_MASS_TOKEN;
  out->mass_reduce = KVASIR_MASS_PER_Q_HEAD;
  out->mass_last_queries = s->window;
  return KVASIR_OK;
}

static kvasir_status observe(void* self, const kvasir_step* step, const kvasir_mass* mass,
                             kvasir_err* err) {
  struct self* s = self;
  for (uint32_t r = 0; r < step->n_rows; ++r) {
    float* first = votes(s, fake_row(step, r)->seq, step->layer, 0);
    const float prompt_end = (float)fake_row(step, r)->prompt_end;
    if (first && first[-1] != prompt_end) { /* another prompt: votes are cast anew */
      memset(first, 0, (layer_floats(s) - 2) * sizeof(float));
      first[-1] = prompt_end;
    }
    for (uint32_t h = 0; h < s->g.n_q_heads; ++h) {
      const uint32_t kv_head = h / (s->g.n_q_heads / s->g.n_kv_heads);
      float* vote = votes(s, fake_row(step, r)->seq, step->layer, kv_head);
      const uint64_t* at = mass->row_offsets + (uint64_t)r * s->g.n_q_heads + h;
      if (!vote) return fake_fail(err, KVASIR_ERR_INVALID, "observe() of an unknown sequence");
      for (uint64_t i = at[0]; i < at[1]; ++i)
        vote[mass->index ? mass->index[i] : i - at[0]] += mass->value[i];
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
      float* vote = votes(s, fake_row(step, r)->seq, step->layer, h);
      if (!vote) return fake_fail(err, KVASIR_ERR_INVALID, "evict_plan() of an unknown sequence");
      if (h == 0) vote[-2] += 1;
      if (range.n <= s->capacity) {
        out->row_flags[out->n_rows] = KVASIR_ROW_ALL;
        fake_end_row(&rows);
        continue;
      }
      float* pooled = FAKE_WORK(s, float, range.n * 2);
      uint8_t* keep = (uint8_t*)(pooled + range.n);
      for (uint32_t i = 0; i < range.n; ++i) { /* over neighbours among the candidates */
        const uint32_t half = s->kernel / 2;
        pooled[i] = 0;
        for (uint32_t j = i > half ? i - half : 0; j <= i + half && j < range.n; ++j)
          pooled[i] += vote[fake_at(&range, j)];
      }
      fake_top(pooled, range.n, s->capacity, keep);
      fake_put_marked(&rows, &range, keep);
    }
  return fake_end(&rows, err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  struct self* s = self;
  double sum = 0;
  if (!fake_state(&s->seqs, seq) || item > s->g.max_context) return (double)NAN;
  if (item == 0) return (double)votes(s, seq, layer, 0)[-2];
  for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) sum += votes(s, seq, layer, h)[item - 1];
  return sum;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->capacity = fake_u32(o, "capacity"), s->window = fake_u32(o, "window");
  s->kernel = fake_u32(o, "kernel"), s->action = fake_u32(o, "action");
  s->t.limits = limits, s->t.observe = observe, s->t.evict_plan = evict_plan;
  FAKE_SEQUENCE_SLOTS(s->t.base);
}
static const char* const actions[] = {"evict", "restrict"};
static const kvasir_option_schema options[] = {
    FAKE_INT("capacity", 64, 1, 1 << 30, "candidates kept per kv head"),
    FAKE_INT("window", 8, 1, 1 << 20, "queries that vote"),
    FAKE_INT("kernel", 5, 1, 101, "tokens pooled, odd"),
    FAKE_ENUM("action", actions, 2, "what happens to the others")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.snapkv", "the last queries of the prompt vote",
            KVASIR_CAP_OPAQUE_STATE, KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ROWS, 0, options)
