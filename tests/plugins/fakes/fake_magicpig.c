/* Proves: ragged rows per query head with log-weights (KVASIR_NEED_HEAD_LOG_WEIGHT), leases of all
 * blocks in select() (KVASIR_NEED_KEYS), update() without a slab, WANT_PROMPT_END, no max_units,
 * and KVASIR_ERR_CAPACITY answered with the needed size, after which the same draw comes again.
 * Token t is drawn for a head with probability u (hash of seed, layer, head, t) and weighs -ln u.
 * Probe: 0 = prompt-end items, 1 = selections, 2 = of these refused at first.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  uint32_t refuse_every, dense_below, refused;
  uint32_t n_prompt_end, n_select, n_refused;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void unready(struct self* s) { (void)s; }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)err;
  out->unit = KVASIR_UNIT_TOKEN;
  out->scope = KVASIR_SCOPE_Q_HEAD;
  out->flags = KVASIR_LIMIT_WANT_PROMPT_END;
  out->dense_below_tokens = ((struct self*)self)->dense_below;
  return KVASIR_OK;
}
static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  (void)self, (void)err; /* no slab, only update() */
  out->flags = KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_SEALED_ONLY;
  return KVASIR_OK;
}
static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  struct self* s = self;
  if (step->slab && step->slab->record_bytes)
    return fake_fail(err, KVASIR_ERR_INVALID, "a slab that nobody asked for");
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_update_item* item = fake_item(items, i, size);
    if (item->lease == NULL || item->lease->k == NULL || item->lease->v == NULL)
      return fake_fail(err, KVASIR_ERR_INVALID, "update() without keys and values");
    s->n_prompt_end += (item->flags & KVASIR_ITEM_PROMPT_END) != 0;
  }
  return KVASIR_OK;
}

/* Uniform in (0, 1): splitmix64 finaliser of the arguments. */
static double uniform(uint64_t seed, uint32_t layer, uint32_t head, uint32_t token, uint64_t salt) {
  uint64_t x = seed ^ salt ^ ((uint64_t)layer << 52) ^ ((uint64_t)head << 36) ^ token;
  for (int round = 0; round < 2; ++round) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
  }
  return ((double)(x >> 11) + 0.5) / 9007199254740992.0;
}

static kvasir_status check_keys(const struct self* s, const kvasir_step* step,
                                const kvasir_sel_in* in, kvasir_err* err) {
  for (uint32_t r = 0; r < step->n_rows; ++r) {
    const uint32_t blocks = (fake_row(step, r)->kv_len + s->g.block_size - 1) / s->g.block_size;
    if (in->leases == NULL || in->lease_offsets[r + 1] - in->lease_offsets[r] != blocks)
      return fake_fail(err, KVASIR_ERR_INVALID, "select() without a lease of every block");
    for (uint64_t i = in->lease_offsets[r]; i < in->lease_offsets[r + 1]; ++i)
      if (in->leases[i].state != KVASIR_LEASE_RESIDENT || in->leases[i].k == NULL)
        return KVASIR_FALLBACK;
  }
  return KVASIR_OK;
}

static kvasir_status select_tokens(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                   kvasir_selection* out, kvasir_err* err) {
  struct self* s = self;
  const kvasir_status keys = check_keys(s, step, in, err);
  if (keys != KVASIR_OK) return keys;
  out->weight_width = 1;
  struct fake_out rows = fake_begin(out);
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_q_heads; ++h) {
      const uint32_t kv_head = h / (s->g.n_q_heads / s->g.n_kv_heads);
      const struct fake_range range = fake_candidates(step, r, kv_head, s->g.n_kv_heads);
      for (uint32_t i = 0; i < range.n; ++i) {
        const uint32_t token = fake_at(&range, i);
        const double u = 0.05 + 0.9 * uniform(s->g.seed, step->layer, h, token, 1);
        if (uniform(s->g.seed, step->layer, h, token, 2) < u)
          fake_put(&rows, token, (float)-log(u));
      }
      fake_end_row(&rows);
    }
  s->n_select += !s->refused;
  if (s->refuse_every && !s->refused && s->n_select % s->refuse_every == 0) {
    s->refused = 1;
    s->n_refused += 1;
    out->needed = rows.n > out->capacity ? rows.n : out->capacity + 1;
    return fake_fail(err, KVASIR_ERR_CAPACITY, "index is too small, says this fake");
  }
  s->refused = rows.n > out->capacity;
  return fake_end(&rows, err);
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  const struct self* s = self;
  (void)seq, (void)layer;
  return item == 0 ? s->n_prompt_end : item == 1 ? s->n_select : item == 2 ? s->n_refused : NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->refuse_every = fake_u32(o, "refuse_every"), s->dense_below = fake_u32(o, "dense_below");
  s->t.limits = limits, s->t.layout = layout, s->t.update = update, s->t.select = select_tokens;
}
static const kvasir_option_schema options[] = {
    FAKE_INT("refuse_every", 0, 0, 1 << 30,
             "every n-th selection asks for a larger buffer; 0 = none"),
    FAKE_INT("dense_below", 0, 0, 1 << 30, "tokens below which everything is attended")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.magicpig", "draws tokens per query head", 0,
            KVASIR_NEED_KEYS | KVASIR_NEED_HEAD_LOG_WEIGHT | KVASIR_NEED_TOKEN_ROWS, 0, options)
