/* Proves: asynchronous storage with a thread of its own (KVASIR_CAP_OWN_THREADS): sealed blocks
 * beyond pool_blocks become NOT_RESIDENT, prefetch() brings them back and reports exactly once per
 * ticket through kvasir.completion/1 (also when cancelled), queue_blocks limits what is accepted,
 * every fail_every-th block is lost, drain() waits, leases are not stable (bytes move at release),
 * slices of one head. Without the completion service prefetch() is unsupported. Probe: 0 = blocks,
 * 1 = of these not resident, 2 = fetched, 3 = lost, 4 = spilled, 5 = leases.
 * SPDX-License-Identifier: Apache-2.0 */
#include <kvasir/ext/completion.h>
#include <pthread.h>
#include <time.h>

#include "tests/plugins/fakes/fake_blocks.h"

struct job {
  struct job* next;
  uint64_t ticket;
  uint32_t n, cancelled;
  kvasir_block_key keys[];
};
struct self {
  kvasir_storage t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  const kvasir_completion* completion;
  pthread_t thread;
  pthread_mutex_t lock; /* of all below */
  pthread_cond_t changed;
  struct fake_blocks blocks;
  struct job *first, *running;
  uint32_t pool_blocks, queue_blocks, fail_every, delay_us;
  uint32_t queued, started, stop, fetched, lost, spilled;
};

static void pause_us(uint32_t us) {
  const struct timespec time = {us / 1000000, (long)(us % 1000000) * 1000};
  nanosleep(&time, NULL);
}

/* Under the lock: sealed blocks leave, the least recently used first, until the pool is kept. */
static void trim(struct self* s) {
  for (;;) {
    uint32_t n_resident = 0;
    struct fake_block* oldest = NULL;
    for (uint32_t i = 0; i < s->blocks.n; ++i) {
      struct fake_block* b = s->blocks.at[i];
      if (!b || !b->sealed || b->state != KVASIR_LEASE_RESIDENT) continue;
      ++n_resident;
      if (b->n_leases == 0 && (!oldest || b->stamp < oldest->stamp)) oldest = b;
    }
    if (n_resident <= s->pool_blocks || !oldest) return;
    fake_move_block(&s->g, oldest);
    oldest->state = KVASIR_LEASE_NOT_RESIDENT;
    s->spilled += 1;
  }
}

static kvasir_status fetch(struct self* s, const kvasir_block_key* key) { /* under the lock */
  const uint32_t i = fake_find(&s->blocks, key);
  if (i == s->blocks.n || s->blocks.at[i]->state == KVASIR_LEASE_FAILED) return KVASIR_ERR_IO;
  struct fake_block* b = s->blocks.at[i];
  b->stamp = ++s->blocks.clock;
  if (b->state == KVASIR_LEASE_RESIDENT) return KVASIR_OK;
  s->fetched += 1;
  if (s->fail_every && s->fetched % s->fail_every == 0) {
    b->state = KVASIR_LEASE_FAILED;
    s->lost += 1;
    return KVASIR_ERR_IO;
  }
  b->state = KVASIR_LEASE_RESIDENT;
  return KVASIR_OK;
}

static void run_job(struct self* s, struct job* job) { /* under the lock, which it lets go */
  kvasir_status* status = calloc(job->n, sizeof *status);
  kvasir_status whole = KVASIR_OK;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < job->n; ++i) {
    pthread_mutex_unlock(&s->lock);
    if (s->delay_us) pause_us(s->delay_us);
    pthread_mutex_lock(&s->lock);
    const kvasir_status one = job->cancelled ? KVASIR_ERR_CANCELLED : fetch(s, &job->keys[i]);
    if (one == KVASIR_OK) bytes += fake_head_floats(&s->g) * sizeof(float);
    if (one != KVASIR_OK) whole = one;
    if (status) status[i] = one;
  }
  s->queued -= job->n;
  pthread_mutex_unlock(&s->lock);
  s->completion->complete(s->completion->self, job->ticket, whole, status, job->n, bytes);
  pthread_mutex_lock(&s->lock);
  free(status);
}

static void* serve(void* self) {
  struct self* s = self;
  pthread_mutex_lock(&s->lock);
  while (!s->stop || s->first) {
    if (!s->first) {
      pthread_cond_wait(&s->changed, &s->lock);
      continue;
    }
    s->running = s->first;
    s->first = s->first->next;
    run_job(s, s->running);
    free(s->running);
    s->running = NULL;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static kvasir_status ready(struct self* s, kvasir_err* err) {
  if (s->started) return fake_fail(err, KVASIR_ERR_INVALID, "bind() came twice");
  if (s->completion && pthread_create(&s->thread, NULL, serve, s) == 0) s->started = 1;
  return KVASIR_OK;
}
static void unready(struct self* s) {
  pthread_mutex_lock(&s->lock);
  s->stop = 1;
  if (s->running) s->running->cancelled = 1;
  for (struct job* job = s->first; job; job = job->next) job->cancelled = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  if (s->started) pthread_join(s->thread, NULL);
  fake_free_blocks(&s->blocks);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
}

static kvasir_status plan(void* self, const kvasir_geometry* g, kvasir_storage_plan* out,
                          kvasir_err* err) {
  (void)self, (void)err;
  out->n_tiers = 2;
  out->block_bytes = g->n_kv_heads * fake_head_floats(g) * sizeof(float);
  return KVASIR_OK;
}
static kvasir_status formats(void* self, kvasir_kv_format* out, uint32_t capacity, uint32_t* n,
                             kvasir_err* err) {
  *n = 1;
  if (capacity < 1) return fake_fail(err, KVASIR_ERR_CAPACITY, "one format");
  out[0] = fake_format(&((struct self*)self)->g);
  return KVASIR_OK;
}

static kvasir_status acquire(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                             uint32_t mode, kvasir_lease* out, uint32_t lease_size,
                             kvasir_err* err) {
  struct self* s = self;
  kvasir_status status = KVASIR_OK;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < n && status == KVASIR_OK; ++i) {
    const kvasir_block_key* key = fake_block_key(keys, i, size);
    kvasir_lease* lease = fake_lease_at(out, i, lease_size);
    uint32_t at = fake_find(&s->blocks, key);
    if (at == s->blocks.n && mode == KVASIR_ACQUIRE_WRITE)
      at = fake_new_block(&s->g, &s->blocks, key);
    if (at == UINT32_MAX) {
      while (i-- > 0) {
        const uint64_t id = fake_lease_at(out, i, lease_size)->lease;
        if (id) s->blocks.at[id - 1]->n_leases -= 1;
      }
      status = fake_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory for a block");
      break;
    }
    if (at == s->blocks.n)
      fake_no_lease(key->kv_head, KVASIR_LEASE_FAILED, lease);
    else if (s->blocks.at[at]->state != KVASIR_LEASE_RESIDENT)
      fake_no_lease(key->kv_head, s->blocks.at[at]->state, lease);
    else
      fake_lease(&s->g, &s->blocks, at, key->kv_head, lease);
    if (at < s->blocks.n && mode == KVASIR_ACQUIRE_WRITE)
      s->blocks.at[at]->key.n_tokens = key->n_tokens, s->blocks.at[at]->sealed = 0;
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

static void release(void* self, const uint64_t* leases, uint32_t n) {
  struct self* s = self;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < n; ++i) {
    struct fake_block* b =
        leases[i] && leases[i] <= s->blocks.n ? s->blocks.at[leases[i] - 1] : NULL;
    if (b && b->n_leases && --b->n_leases == 0) fake_move_block(&s->g, b);
  }
  trim(s);
  pthread_mutex_unlock(&s->lock);
}

static kvasir_status seal(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                          kvasir_lease* leases, uint32_t lease_size, kvasir_err* err) {
  struct self* s = self;
  kvasir_status status = KVASIR_OK;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < n; ++i) {
    kvasir_lease* lease = fake_lease_at(leases, i, lease_size);
    if (lease->lease == 0 || lease->lease > s->blocks.n || !s->blocks.at[lease->lease - 1]) {
      status = fake_fail(err, KVASIR_ERR_INVALID, "seal() without a lease");
      break;
    }
    struct fake_block* b = s->blocks.at[lease->lease - 1];
    b->key = *fake_block_key(keys, i, size);
    b->sealed = 1;
  }
  trim(s);
  pthread_mutex_unlock(&s->lock);
  return status;
}

static kvasir_status drop(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                          uint32_t mode, kvasir_err* err) {
  struct self* s = self;
  (void)err;
  pthread_mutex_lock(&s->lock); /* UNREF: no tier keeps bytes that nobody holds, so both erase */
  (void)mode;
  for (uint32_t i = 0; i < n; ++i) fake_drop(&s->g, &s->blocks, fake_block_key(keys, i, size));
  pthread_mutex_unlock(&s->lock);
  return KVASIR_OK;
}

static kvasir_status prefetch(void* self, const kvasir_block_key* keys, uint32_t n, uint32_t size,
                              const kvasir_io_hint* hint, uint64_t ticket, uint32_t* accepted,
                              kvasir_err* err) {
  struct self* s = self;
  (void)hint;
  *accepted = 0;
  if (!s->started) return fake_fail(err, KVASIR_ERR_UNSUPPORTED, "the host reports no completions");
  pthread_mutex_lock(&s->lock);
  const uint32_t room = s->queue_blocks > s->queued ? s->queue_blocks - s->queued : 0;
  struct job* job = room ? calloc(1, sizeof *job + n * sizeof job->keys[0]) : NULL;
  if (job) {
    job->ticket = ticket;
    job->n = *accepted = n < room ? n : room;
    for (uint32_t i = 0; i < job->n; ++i) job->keys[i] = *fake_block_key(keys, i, size);
    s->queued += job->n;
    struct job** last = &s->first;
    while (*last) last = &(*last)->next;
    *last = job;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return job ? KVASIR_OK : KVASIR_AGAIN; /* nothing accepted: no report for this ticket */
}

static kvasir_status cancel(void* self, uint64_t ticket, kvasir_err* err) {
  struct self* s = self;
  (void)err;
  pthread_mutex_lock(&s->lock);
  if (s->running && s->running->ticket == ticket) s->running->cancelled = 1;
  for (struct job* job = s->first; job; job = job->next)
    if (job->ticket == ticket) job->cancelled = 1;
  pthread_mutex_unlock(&s->lock);
  return KVASIR_OK;
}

static kvasir_status drain(void* self, uint64_t deadline_ms, kvasir_err* err) {
  struct self* s = self;
  kvasir_status status = KVASIR_AGAIN;
  (void)err;
  for (uint64_t waited = 0; status == KVASIR_AGAIN; ++waited) {
    pthread_mutex_lock(&s->lock);
    if (!s->first && !s->running) status = KVASIR_OK;
    pthread_mutex_unlock(&s->lock);
    if (waited >= deadline_ms) break;
    if (status == KVASIR_AGAIN) pause_us(1000);
  }
  return status;
}

static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  struct self* s = self;
  (void)seq, (void)layer;
  pthread_mutex_lock(&s->lock);
  double seen[6] = {0, 0, s->fetched, s->lost, s->spilled, 0};
  for (uint32_t i = 0; i < s->blocks.n; ++i) {
    if (!s->blocks.at[i]) continue;
    seen[0] += 1;
    seen[1] += s->blocks.at[i]->state == KVASIR_LEASE_NOT_RESIDENT;
    seen[5] += s->blocks.at[i]->n_leases;
  }
  pthread_mutex_unlock(&s->lock);
  return item < 6 ? seen[item] : (double)NAN;
}

static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  s->completion = host->get_extension(host->self, KVASIR_EXT_COMPLETION);
  s->pool_blocks = fake_u32(o, "pool_blocks"), s->queue_blocks = fake_u32(o, "queue_blocks");
  s->fail_every = fake_u32(o, "fail_every"), s->delay_us = fake_u32(o, "delay_us");
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->t.base.drain = drain;
  s->t.plan = plan, s->t.formats = formats, s->t.acquire = acquire, s->t.release = release;
  s->t.seal = seal, s->t.drop = drop, s->t.prefetch = prefetch, s->t.cancel = cancel;
}
static const kvasir_option_schema options[] = {
    FAKE_INT("pool_blocks", 64, 0, 1 << 30, "sealed blocks that stay resident, over all layers"),
    FAKE_INT("queue_blocks", 1024, 0, 1 << 30, "blocks in flight at most"),
    FAKE_INT("fail_every", 0, 0, 1 << 30, "every n-th fetched block is lost; 0 = none"),
    FAKE_INT("delay_us", 0, 0, 10000000, "time per fetched block")};
FAKE_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.async_storage", "two tiers and a thread",
            KVASIR_CAP_OWN_THREADS, 0, 0, options)
