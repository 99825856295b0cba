/* Proves: a block selector over scores (KVASIR_NEED_SCORES) that also selects in prefill, slice by
 * slice, with unrotated keys and one constant distance to all candidates (KVASIR_POS_CONSTANT,
 * KVASIR_NEED_DISTANCE); validate(). Takes the topk best blocks of each row.
 * Probe: 0 = selections in prefill, 1 = in decode, 2 = largest n_q seen in prefill.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t topk, slice, seen[3];
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status validate(void* self, const kvasir_geometry* g, kvasir_err* err) {
  (void)self;
  if (g->k_state != KVASIR_K_UNROTATED)
    return fake_fail(err, KVASIR_ERR_INVALID, "keys must be stored unrotated");
  if (g->window_tokens == 0)
    return fake_fail(err, KVASIR_ERR_INVALID, "window_tokens must not be 0: distances end there");
  return KVASIR_OK;
}

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->unit = KVASIR_UNIT_BLOCK;
  out->scope = s->g.head_select_shared ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD;
  out->flags = KVASIR_LIMIT_PREFILL_SELECT;
  out->max_units = s->topk;
  out->prefill_slice_tokens = s->slice;
  out->pos_mode = KVASIR_POS_CONSTANT;
  out->pos_const = s->g.window_tokens - 1;
  return KVASIR_OK;
}

static kvasir_status select_blocks(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                   kvasir_selection* out, kvasir_err* err) {
  struct self* s = self;
  const uint32_t heads = s->g.head_select_shared ? 1 : s->g.n_kv_heads;
  const int prefill = step->moment == KVASIR_P2;
  if (in->n_score_heads != heads || in->scores == NULL)
    return fake_fail(err, KVASIR_ERR_INVALID, "select() without scores");
  struct fake_out rows = fake_begin(out);
  s->seen[prefill ? 0 : 1] += 1;
  for (uint32_t r = 0; r < step->n_rows; ++r) {
    if (prefill && fake_row(step, r)->n_q > s->seen[2]) s->seen[2] = fake_row(step, r)->n_q;
    for (uint32_t h = 0; h < heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      const uint64_t* at = in->score_offsets + (uint64_t)r * heads + h;
      uint8_t* keep = FAKE_WORK(s, uint8_t, range.n);
      if (at[1] - at[0] != range.n)
        return fake_fail(err, KVASIR_ERR_INVALID, "scores and candidates differ in number");
      fake_top(in->scores + at[0], range.n, s->topk, keep);
      fake_put_marked(&rows, &range, keep);
    }
  }
  return fake_end(&rows, err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item < 3 ? ((struct self*)self)->seen[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->topk = fake_u32(o, "topk"), s->slice = fake_u32(o, "slice");
  s->t.base.validate = validate;
  s->t.limits = limits, s->t.select = select_blocks;
}
static const kvasir_option_schema options[] = {
    FAKE_INT("topk", 4, 1, 1 << 20, "blocks per step"),
    FAKE_INT("slice", 16, 1, 1 << 20, "prompt tokens that share a selection")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.infllm", "best blocks, in prefill too", 0,
            KVASIR_NEED_UNROTATED_K | KVASIR_NEED_SCORES | KVASIR_NEED_DISTANCE, 0, options)
