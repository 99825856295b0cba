/* A storage that misbehaves on request, to prove that the host notices: option `fault`, from call
 * number `from_call` of the function it spoils on. Else blocks in host memory, always resident.
 * Probe: 0 = blocks, 1 = leases, 2 = calls of the spoilt function.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/fake_blocks.h"

static const char* const faults[] = {
    "none",       "acquire_error", "acquire_again", "full",       "null_keys",  "wrong_format",
    "wrong_head", "lost",          "unknown_state", "seal_error", "drop_error", "no_formats"};
enum {
  none,
  acquire_error,
  acquire_again,
  full,
  null_keys,
  wrong_format,
  wrong_head,
  lost,
  unknown_state,
  seal_error,
  drop_error,
  no_formats
};

struct self {
  kvasir_storage t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  struct fake_blocks blocks;
  uint32_t fault, from_call, calls;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void unready(struct self* s) { fake_free_blocks(&s->blocks); }

static int due(struct self* s, uint32_t first, uint32_t last) {
  if (s->fault < first || s->fault > last) return 0;
  return ++s->calls > s->from_call;
}

static kvasir_status plan(void* self, const kvasir_geometry* g, kvasir_storage_plan* out,
                          kvasir_err* err) {
  (void)self, (void)err;
  out->n_tiers = 1;
  out->block_bytes = g->n_kv_heads * fake_head_floats(g) * sizeof(float);
  return KVASIR_OK;
}
static kvasir_status formats(void* self, kvasir_kv_format* out, uint32_t capacity, uint32_t* n,
                             kvasir_err* err) {
  struct self* s = self;
  *n = due(s, no_formats, no_formats) ? 0 : 1;
  if (capacity < *n) return fake_fail(err, KVASIR_ERR_CAPACITY, "one format");
  if (*n) out[0] = fake_format(&s->g);
  return KVASIR_OK;
}

static void spoil(const struct self* s, kvasir_lease* lease) {
  if (s->fault == null_keys) lease->k = NULL;
  if (s->fault == wrong_format) lease->format = 99;
  if (s->fault == wrong_head) lease->kv_head = s->g.n_kv_heads;
  if (s->fault == lost) lease->state = KVASIR_LEASE_FAILED, lease->k = lease->v = NULL;
  if (s->fault == unknown_state) lease->state = 77;
}

static kvasir_status acquire(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                             uint32_t mode, kvasir_lease* out, uint32_t lease_size,
                             kvasir_err* err) {
  struct self* s = self;
  const int spoilt = due(s, acquire_error, unknown_state);
  if (spoilt && s->fault == acquire_error)
    return fake_fail(err, KVASIR_ERR_IO, "broken on request");
  if (spoilt && s->fault == acquire_again) return KVASIR_AGAIN;
  if (spoilt && s->fault == full && mode == KVASIR_ACQUIRE_WRITE)
    return fake_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "full on request");
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_block_key* key = fake_block_key(keys, i, size);
    kvasir_lease* lease = fake_lease_at(out, i, lease_size);
    uint32_t at = fake_find(&s->blocks, key);
    if (at == s->blocks.n && mode == KVASIR_ACQUIRE_WRITE)
      at = fake_new_block(&s->g, &s->blocks, key);
    if (at == UINT32_MAX) return fake_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory for a block");
    fake_no_lease(key->kv_head, KVASIR_LEASE_FAILED, lease);
    if (at < s->blocks.n) fake_lease(&s->g, &s->blocks, at, key->kv_head, lease);
    if (spoilt && i == 0) spoil(s, lease);
  }
  return KVASIR_OK;
}
static void release(void* self, const uint64_t* leases, uint32_t n) {
  struct self* s = self;
  for (uint32_t i = 0; i < n; ++i)
    if (leases[i] && leases[i] <= s->blocks.n && s->blocks.at[leases[i] - 1] &&
        s->blocks.at[leases[i] - 1]->n_leases)
      s->blocks.at[leases[i] - 1]->n_leases -= 1;
}
static kvasir_status seal(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                          kvasir_lease* leases, uint32_t lease_size, kvasir_err* err) {
  struct self* s = self;
  if (due(s, seal_error, seal_error)) return fake_fail(err, KVASIR_ERR_IO, "broken on request");
  for (uint32_t i = 0; i < n; ++i) {
    const kvasir_lease* lease = fake_lease_at(leases, i, lease_size);
    if (lease->lease && lease->lease <= s->blocks.n && s->blocks.at[lease->lease - 1])
      s->blocks.at[lease->lease - 1]->key = *fake_block_key(keys, i, size);
  }
  return KVASIR_OK;
}
static kvasir_status drop(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                          uint32_t mode, kvasir_err* err) {
  struct self* s = self;
  (void)mode;
  if (due(s, drop_error, drop_error)) return fake_fail(err, KVASIR_ERR_IO, "broken on request");
  for (uint32_t i = 0; i < n; ++i) fake_drop(&s->g, &s->blocks, fake_block_key(keys, i, size));
  return KVASIR_OK;
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  const struct self* s = self;
  double seen[3] = {0, 0, s->calls};
  (void)seq, (void)layer;
  for (uint32_t i = 0; i < s->blocks.n; ++i) {
    seen[0] += s->blocks.at[i] != NULL;
    seen[1] += s->blocks.at[i] ? s->blocks.at[i]->n_leases : 0;
  }
  return item < 3 ? seen[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->fault = fake_u32(o, "fault"), s->from_call = fake_u32(o, "from_call");
  s->t.plan = plan, s->t.formats = formats, s->t.acquire = acquire, s->t.release = release;
  s->t.seal = seal, s->t.drop = drop;
}
static const kvasir_option_schema options[] = {
    FAKE_ENUM("fault", faults, sizeof faults / sizeof *faults, "what goes wrong"),
    FAKE_INT("from_call", 0, 0, 1 << 30, "honest calls before that")};
FAKE_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.bad_storage", "misbehaves on request", 0, 0,
            KVASIR_PROVIDE_STABLE_LEASES, options)
