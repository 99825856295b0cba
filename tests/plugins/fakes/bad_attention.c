/* An attention backend that computes honestly (joint softmax over all parts, plain loops, double)
 * and spoils its result on request, to prove that the host notices: option `fault`, from run()
 * number `from_call` on. Probe: 0 = runs. SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

static const char* const faults[] = {"none",  "nan",           "inf",      "nan_lse",
                                     "error", "error_no_text", "untouched"};
enum { none, nan_o, inf_o, nan_lse, error, error_no_text, untouched };

struct self {
  kvasir_attention t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t fault, from_call, runs;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }
static kvasir_status plan(void* self, const kvasir_attn_shape* shape, kvasir_attn_plan* out,
                          kvasir_err* err) {
  (void)self, (void)shape, (void)out, (void)err;
  return KVASIR_OK;
}

/* Adds one key to (max, sum, o[v_dim] unnormalised). */
static void add_key(const struct self* s, const kvasir_lease* lease, uint32_t kv_head, uint32_t t,
                    const float* q, double log_weight, double* state) {
  const kvasir_kv_format* format = &s->g.formats[lease->format];
  const char* v = (const char*)lease->v + t * format->v_token_stride;
  double logit = 0;
  if (lease->kv_head == KVASIR_ALL_HEADS) v += kv_head * format->v_head_stride;
  for (uint32_t d = 0; d < s->g.head_dim; ++d)
    logit += (double)q[d] * (double)fake_key(&s->g, lease, kv_head, t, d);
  logit *= (double)s->g.softmax_scale;
  if (s->g.softcap > 0) logit = (double)s->g.softcap * tanh(logit / (double)s->g.softcap);
  logit += log_weight;
  const double max = fmax(state[0], logit);
  if (max == -INFINITY) return;
  const double keep = exp(state[0] - max), add = exp(logit - max);
  state[0] = max;
  state[1] = state[1] * keep + add;
  for (uint32_t d = 0; d < s->g.v_dim; ++d)
    state[2 + d] = state[2 + d] * keep + add * (double)fake_number(format->dtype_v, v, d);
}

/* All keys of one row of a part, for query `i` and head `h`. */
static void add_row(const struct self* s, const kvasir_attn_part* part, const kvasir_attn_row* row,
                    uint32_t i, uint32_t h, double* state) {
  const uint32_t tokens = part->unit == KVASIR_UNIT_TOKEN;
  const uint32_t group = s->g.n_q_heads / s->g.n_kv_heads;
  for (uint64_t at = row->item_begin; at < row->item_end; ++at) {
    const uint32_t item = part->items ? part->items[at] : (uint32_t)at;
    const char* bytes = (const char*)part->leases +
                        (size_t)(tokens ? item / s->g.block_size : item) * part->lease_size;
    const kvasir_lease* lease = (const kvasir_lease*)(const void*)bytes;
    const uint32_t begin = tokens ? item % s->g.block_size : 0;
    const uint32_t end = tokens ? begin + 1 : lease->n_tokens;
    const double weight =
        !part->log_weight
            ? 0
            : (double)part
                  ->log_weight[at * part->weight_width + (part->weight_width > 1 ? h % group : 0)];
    for (uint32_t t = begin; t < end; ++t) {
      const uint32_t pos = lease->token_pos ? lease->token_pos[t] : lease->pos_begin + t;
      const uint32_t distance = part->q_pos[i] - pos;
      if (pos > part->q_pos[i] || distance < part->dist_min) continue;
      if (part->dist_max != UINT32_MAX && distance >= part->dist_max) continue;
      add_key(s, lease, row->kv_head, t, fake_q(&part->q, i, h), weight, state);
    }
  }
}

static void one_head(struct self* s, const kvasir_attn_in* in, uint32_t i, uint32_t h,
                     double* state, kvasir_attn_out* out) {
  uint32_t named = 0;
  memset(state, 0, (2 + s->g.v_dim) * sizeof *state);
  state[0] = -INFINITY;
  for (uint32_t p = 0; p < in->n_parts; ++p) {
    const char* bytes = (const char*)in->parts + (size_t)p * in->part_size;
    const kvasir_attn_part* part = (const kvasir_attn_part*)(const void*)bytes;
    for (uint32_t r = 0; r < part->n_rows; ++r) {
      const char* at = (const char*)part->rows + (size_t)r * part->row_size;
      const kvasir_attn_row* row = (const kvasir_attn_row*)(const void*)at;
      if (row->kv_head != h / (s->g.n_q_heads / s->g.n_kv_heads) || i < row->q_begin ||
          i >= row->q_begin + row->n_q)
        continue;
      named = 1;
      add_row(s, part, row, i, h, state);
    }
  }
  const size_t at = (size_t)i * s->g.n_q_heads + h;
  if (!named) return;
  out->lse[at] = state[1] > 0 ? (float)(state[0] + log(state[1])) : -INFINITY;
  for (uint32_t d = 0; d < s->g.v_dim; ++d)
    out->o[at * s->g.v_dim + d] = state[1] > 0 ? (float)(state[2 + d] / state[1]) : 0.0f;
}

static kvasir_status run(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                         kvasir_attn_out* out, kvasir_err* err) {
  struct self* s = self;
  const uint32_t fault = ++s->runs > s->from_call ? s->fault : none;
  double* state = FAKE_WORK(s, double, 2 + s->g.v_dim);
  (void)step;
  if (fault == error) return fake_fail(err, KVASIR_ERR_INTERNAL, "broken on request");
  if (fault == error_no_text) return KVASIR_ERR_INTERNAL;
  if (fault == untouched || in->n_parts == 0) return KVASIR_OK;
  for (uint32_t i = 0; i < in->parts->q.shape[0]; ++i)
    for (uint32_t h = 0; h < s->g.n_q_heads; ++h) one_head(s, in, i, h, state, out);
  if (fault == nan_o) out->o[0] = NAN;
  if (fault == inf_o) out->o[s->g.v_dim - 1] = INFINITY;
  if (fault == nan_lse) out->lse[0] = NAN;
  return KVASIR_OK;
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item == 0 ? ((struct self*)self)->runs : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->fault = fake_u32(o, "fault"), s->from_call = fake_u32(o, "from_call");
  s->t.plan = plan, s->t.run = run;
}
static const kvasir_option_schema options[] = {
    FAKE_ENUM("fault", faults, sizeof faults / sizeof *faults, "what goes wrong"),
    FAKE_INT("from_call", 0, 0, 1 << 30, "honest calls before that")};
FAKE_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.bad_attention", "spoils its result on request", 0,
            0,
            KVASIR_PROVIDE_LOG_WEIGHT | KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ROWS |
                KVASIR_PROVIDE_DISTANCE,
            options)
