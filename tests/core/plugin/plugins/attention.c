/* A backend that computes nothing; it uses the host's pool, scratch and log when told to run.
 * SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_ATTENTION
#include "common.h"

TEST_DESC(0, 0);

typedef struct attention {
  kvasir_attention table;
  const kvasir_thread_pool* pool;
  const kvasir_scratch* scratch;
  const kvasir_log* log;
} attention;

typedef struct sum_task {
  attention* self;
  uint64_t sums[256]; /* per worker */
  int refused;        /* nested regions that were refused */
} sum_task;

static void nothing(void* user, uint64_t begin, uint64_t end, uint32_t worker) {
  (void)user, (void)begin, (void)end, (void)worker;
}

/* Adds up its tasks through scratch memory of its worker. */
static void sum(void* user, uint64_t begin, uint64_t end, uint32_t worker) {
  sum_task* task = user;
  const attention* a = task->self;
  uint64_t* scratch = a->scratch->get(a->scratch->self, worker, (end - begin) * sizeof *scratch);
  if (!scratch || worker >= 256) return;
  for (uint64_t i = begin; i < end; ++i) scratch[i - begin] = i;
  for (uint64_t i = begin; i < end; ++i) task->sums[worker] += scratch[i - begin];
  if (a->pool->parallel_for(a->pool->self, 1, 0, nothing, 0) != 0) {
    __atomic_fetch_add(&task->refused, 1, __ATOMIC_RELAXED);
  }
}

static kvasir_status att_plan(void* self, const kvasir_attn_shape* shape, kvasir_attn_plan* out,
                              kvasir_err* err) {
  (void)self, (void)err;
  out->scratch_bytes = shape->max_queries * shape->max_keys;
  return KVASIR_OK;
}
/* lse[0]: the sum of 0 .. 999; lse[1]: how many nested regions were refused. */
static kvasir_status att_run(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                             kvasir_attn_out* out, kvasir_err* err) {
  (void)step, (void)in;
  attention* a = self;
  sum_task task;
  memset(&task, 0, sizeof task);
  task.self = a;
  if (a->pool->parallel_for(a->pool->self, 1000, 100, sum, &task) != 0) {
    return kvasir_fail(err, KVASIR_ERR_INTERNAL, "refused");
  }
  float* lse = out->lse.data;
  lse[0] = 0;
  for (int i = 0; i < 256; ++i) lse[0] += (float)task.sums[i];
  lse[1] = (float)task.refused;
  a->log->write(a->log->self, 99, TEST_ID, "two\nlines");
  a->log->write(a->log->self, KVASIR_LOG_INFO, 0, 0);
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  (void)index, (void)options, (void)n_options, (void)option_size;
  attention* a = test_instance(sizeof *a, sizeof a->table, &plugin_desc);
  if (!a) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  a->pool = host->get_extension(host->self, KVASIR_EXT_THREAD_POOL);
  a->scratch = host->get_extension(host->self, KVASIR_EXT_SCRATCH);
  a->log = host->get_extension(host->self, KVASIR_EXT_LOG);
  a->table.plan = att_plan;
  a->table.run = att_run;
  *out = &a->table.base;
  return KVASIR_OK;
}
