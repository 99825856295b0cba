/* A storage of one block; `fault`: where it misbehaves. SPDX-License-Identifier: Apache-2.0 */
#define TEST_KIND KVASIR_KIND_STORAGE
#include "common.h"

static const kvasir_option_schema schema[] = {TEXT_OPTION("fault", "where it fails")};
TEST_DESC(schema, 1);

typedef struct storage {
  kvasir_storage table;
  const kvasir_completion* completion;
  char fault[32];
  float data[64];
} storage;

static int has_fault(void* self, const char* fault) {
  return strcmp(((storage*)self)->fault, fault) == 0;
}

static kvasir_status sto_plan(void* self, const kvasir_geometry* g, kvasir_storage_plan* out,
                              kvasir_err* err) {
  (void)g, (void)err;
  out->n_tiers = 1;
  out->block_bytes = has_fault(self, "plan") ? 0 : 256;
  return KVASIR_OK;
}
/* Ten formats: more than a host guesses at first. */
static kvasir_status sto_formats(void* self, kvasir_kv_format* out, uint32_t capacity,
                                 uint32_t* n_formats, kvasir_err* err) {
  *n_formats = has_fault(self, "formats.endless") ? capacity + 1000000 : 10;
  if (capacity < *n_formats) return kvasir_fail(err, KVASIR_ERR_CAPACITY, "too small");
  for (uint32_t i = 0; i < 10; ++i) {
    out[i].dtype_k = has_fault(self, "formats.type") ? 99 : KVASIR_DTYPE_F32;
    out[i].dtype_v = KVASIR_DTYPE_F16;
    out[i].k_token_stride = has_fault(self, "formats.stride") && i == 9 ? 6 : 8;
    out[i].v_token_stride = 6;
    if (out[i].struct_size != sizeof out[i]) out[i].dtype_k = 99;
    out[i].mem_kind = has_fault(self, "formats.device")   ? KVASIR_MEM_DEVICE
                      : has_fault(self, "formats.memory") ? 77
                                                          : KVASIR_MEM_HOST;
  }
  return KVASIR_OK;
}
static kvasir_status sto_acquire(void* self, const kvasir_block_key* keys, uint32_t n,
                                 uint32_t key_size, uint32_t mode, kvasir_lease* out,
                                 uint32_t lease_size, kvasir_err* err) {
  (void)keys, (void)key_size, (void)mode;
  storage* s = self;
  if (has_fault(self, "acquire.again")) return kvasir_fail(err, KVASIR_AGAIN, "full");
  for (uint32_t i = 0; i < n; ++i) {
    kvasir_lease* lease = (kvasir_lease*)(void*)((char*)out + i * lease_size);
    memset(lease, 0, sizeof *lease);
    if (!has_fault(self, "acquire.null")) lease->k = lease->v = s->data;
    if (has_fault(self, "acquire.state")) lease->state = 9;
    if (has_fault(self, "acquire.partial")) lease->state = KVASIR_LEASE_PARTIAL;
  }
  return KVASIR_OK;
}
static void sto_release(void* self, const uint64_t* leases, uint32_t n) {
  (void)self, (void)leases, (void)n;
}
static kvasir_status sto_seal(void* self, const kvasir_block_key* keys, uint32_t n,
                              uint32_t key_size, kvasir_lease* leases, uint32_t lease_size,
                              kvasir_err* err) {
  (void)keys, (void)n, (void)key_size, (void)lease_size, (void)err;
  if (has_fault(self, "seal.null")) leases->k = 0;
  return has_fault(self, "seal.again") ? KVASIR_AGAIN : KVASIR_OK;
}
static kvasir_status sto_drop(void* self, const kvasir_block_key* keys, uint32_t n,
                              uint32_t key_size, uint32_t mode, kvasir_err* err) {
  (void)keys, (void)n, (void)key_size, (void)mode;
  return has_fault(self, "drop") ? kvasir_fail(err, KVASIR_ERR_IO, "the disk is gone") : KVASIR_OK;
}
static kvasir_status sto_prefetch(void* self, const kvasir_block_key* keys, uint32_t n,
                                  uint32_t key_size, const kvasir_io_hint* hint, uint64_t ticket,
                                  uint32_t* accepted, kvasir_err* err) {
  (void)keys, (void)key_size, (void)hint, (void)err;
  storage* s = self;
  *accepted = has_fault(self, "prefetch.accepted") ? n + 1 : n;
  const kvasir_status blocks[2] = {KVASIR_OK, KVASIR_ERR_IO};
  const kvasir_completion* c = s->completion;
  c->complete(c->self, ticket, KVASIR_OK, n == 2 ? blocks : 0, n == 2 ? 2 : 0, 512);
  if (has_fault(self, "prefetch.twice")) c->complete(c->self, ticket, KVASIR_OK, 0, 0, 0);
  return KVASIR_OK;
}

static kvasir_status plugin_create(uint32_t index, const kvasir_host* host,
                                   const kvasir_option* options, uint32_t n_options,
                                   uint32_t option_size, struct kvasir_instance** out,
                                   kvasir_err* err) {
  storage* s = test_instance(sizeof *s, sizeof s->table, &plugin_desc);
  (void)index, (void)n_options, (void)option_size;
  if (!s) return kvasir_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory");
  strncpy(s->fault, options[0].value.s, sizeof s->fault - 1);
  s->completion = host->get_extension(host->self, KVASIR_EXT_COMPLETION);
  s->table.plan = sto_plan, s->table.formats = sto_formats;
  s->table.acquire = sto_acquire, s->table.release = sto_release;
  s->table.seal = sto_seal, s->table.drop = sto_drop, s->table.prefetch = sto_prefetch;
  *out = &s->table.base;
  return KVASIR_OK;
}
