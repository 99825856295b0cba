/* What the fake plugins share: options, step rows, records, keys as floats, top-k, result rows,
 * per-sequence state, and the plugin table. Each fake defines `struct self` with the members named
 * by the macros at the end, and make().
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_H
#define FAKE_H

#include <kvasir/kvasir.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugins/fakes/probe.h"

#define FAKE_FLOATS                                                          \
  (KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) | \
   KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16))

static inline kvasir_status fake_fail(kvasir_err* err, kvasir_status code, const char* text) {
  err->code = code;
  snprintf(err->text, sizeof err->text, "%s", text);
  return code;
}

/* ---- options -------------------------------------------------------------------------------- */

struct fake_options {
  const kvasir_option* at;
  uint32_t n, size;
};

#define FAKE_INT(key_, def_, min_, max_, help_)                                          \
  {                                                                                      \
    .struct_size = sizeof(kvasir_option_schema), .type = KVASIR_OPTION_INT, .key = key_, \
    .help = help_, .def = {.type = KVASIR_OPTION_INT, .i = def_},                        \
    .min = {.type = KVASIR_OPTION_INT, .i = min_}, .max = {                              \
      .type = KVASIR_OPTION_INT,                                                         \
      .i = max_                                                                          \
    }                                                                                    \
  }
#define FAKE_FLOAT(key_, def_, min_, max_, help_)                                          \
  {                                                                                        \
    .struct_size = sizeof(kvasir_option_schema), .type = KVASIR_OPTION_FLOAT, .key = key_, \
    .help = help_, .def = {.type = KVASIR_OPTION_FLOAT, .f = def_},                        \
    .min = {.type = KVASIR_OPTION_FLOAT, .f = min_}, .max = {                              \
      .type = KVASIR_OPTION_FLOAT,                                                         \
      .f = max_                                                                            \
    }                                                                                      \
  }
#define FAKE_ENUM(key_, names_, n_, help_)                                                \
  {                                                                                       \
    .struct_size = sizeof(kvasir_option_schema), .type = KVASIR_OPTION_ENUM, .key = key_, \
    .help = help_, .n_enum = n_, .enum_names = names_, .def = {                           \
      .type = KVASIR_OPTION_ENUM                                                          \
    }                                                                                     \
  }

static inline kvasir_value fake_option(const struct fake_options* options, const char* key) {
  for (uint32_t i = 0; i < options->n; ++i) {
    const char* bytes = (const char*)options->at + (size_t)i * options->size;
    const kvasir_option* option = (const kvasir_option*)(const void*)bytes;
    if (strcmp(option->key, key) == 0) return option->value;
  }
  return (kvasir_value){0};
}
static inline uint32_t fake_u32(const struct fake_options* options, const char* key) {
  return (uint32_t)fake_option(options, key).i;
}

/* ---- steps, records, keys, queries ----------------------------------------------------------- */

static inline const kvasir_step_row* fake_row(const kvasir_step* step, uint32_t r) {
  return (const kvasir_step_row*)(const void*)((const char*)step->rows +
                                               (size_t)r * step->row_size);
}
static inline const kvasir_update_item* fake_item(const kvasir_update_item* items, uint32_t i,
                                                  uint32_t size) {
  return (const kvasir_update_item*)(const void*)((const char*)items + (size_t)i * size);
}

static inline void* fake_page(const kvasir_slab* slab, void* const* pages, uint64_t bytes,
                              uint32_t row, uint32_t kv_head, uint32_t block) {
  const uint64_t page = slab->row_pages[row] + block / slab->page_blocks;
  if (pages == NULL || page >= slab->row_pages[row + 1] || pages[page] == NULL) return NULL;
  return (char*)pages[page] +
         ((uint64_t)kv_head * slab->page_blocks + block % slab->page_blocks) * bytes;
}
static inline void* fake_record(const kvasir_slab* slab, uint32_t row, uint32_t kv_head,
                                uint32_t block) {
  return fake_page(slab, slab->pages, slab->record_bytes, row, kv_head, block);
}
static inline void* fake_open_record(const kvasir_slab* slab, uint32_t row, uint32_t kv_head,
                                     uint32_t block) {
  return fake_page(slab, slab->open_pages, slab->open_bytes, row, kv_head, block);
}

static inline float fake_number(uint32_t dtype, const void* row, uint32_t d) {
  float f;
  uint32_t bits = 0;
  if (dtype == KVASIR_DTYPE_F32) return ((const float*)row)[d];
  const uint32_t half = ((const uint16_t*)row)[d];
  if (dtype == KVASIR_DTYPE_BF16) {
    bits = half << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
  }
  const int exponent = (int)(half >> 10 & 31);
  f = exponent == 0 ? ldexpf((float)(half & 1023), -24)
                    : ldexpf((float)((half & 1023) | 1024), exponent - 25);
  return half & 0x8000 ? -f : f;
}
/* Element d of the key of token t, of a lease of all heads or of this one. */
static inline float fake_key(const kvasir_geometry* g, const kvasir_lease* lease, uint32_t kv_head,
                             uint32_t t, uint32_t d) {
  const kvasir_kv_format* format = &g->formats[lease->format];
  const uint64_t head = lease->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  const char* row =
      (const char*)lease->k + head * format->k_head_stride + t * format->k_token_stride;
  return fake_number(format->dtype_k, row, d);
}
static inline const float* fake_q(const kvasir_view* q, uint32_t row, uint32_t q_head) {
  const char* bytes =
      (const char*)q->data + (int64_t)row * q->stride[0] + (int64_t)q_head * q->stride[1];
  return (const float*)(const void*)bytes;
}

/* ---- candidates and results ------------------------------------------------------------------ */

struct fake_range { /* candidate i: list[i], or begin + i */
  const uint32_t* list;
  uint32_t begin, n;
};
static inline struct fake_range fake_candidates(const kvasir_step* step, uint32_t r,
                                                uint32_t kv_head, uint32_t n_kv_heads) {
  const kvasir_selection* c = step->candidates;
  const kvasir_step_row* row = fake_row(step, r);
  if (c == NULL)
    return (struct fake_range){
        NULL, row->unit_begin,
        row->unit_end > row->unit_begin ? row->unit_end - row->unit_begin : 0};
  const uint32_t i = c->scope == KVASIR_SCOPE_SEQUENCE ? r : r * n_kv_heads + kv_head;
  return (struct fake_range){c->index + c->row_offsets[i], 0,
                             (uint32_t)(c->row_offsets[i + 1] - c->row_offsets[i])};
}
static inline uint32_t fake_at(const struct fake_range* range, uint32_t i) {
  return range->list ? range->list[i] : range->begin + i;
}

/* Marks the k largest of value[0, n); equal ones: the lower index. Returns how many. */
static inline uint32_t fake_top(const float* value, uint32_t n, uint32_t k, uint8_t* keep) {
  memset(keep, 0, n);
  if (k > n) k = n;
  for (uint32_t found = 0; found < k; ++found) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; ++i)
      if (!keep[i] && (best == n || value[i] > value[best])) best = i;
    keep[best] = 1;
  }
  return k;
}

struct fake_out {
  kvasir_selection* to;
  uint64_t n;
};
static inline struct fake_out fake_begin(kvasir_selection* to) {
  to->n_rows = 0;
  to->row_offsets[0] = 0;
  return (struct fake_out){to, 0};
}
static inline void fake_put(struct fake_out* out, uint32_t unit, float log_weight) {
  if (out->n < out->to->capacity) {
    out->to->index[out->n] = unit;
    if (out->to->weight_width == 1) out->to->log_weight[out->n] = log_weight;
  }
  ++out->n;
}
static inline void fake_end_row(struct fake_out* out) {
  out->to->row_offsets[++out->to->n_rows] = out->n;
}
static inline kvasir_status fake_end(struct fake_out* out, kvasir_err* err) {
  out->to->needed = out->n;
  if (out->n <= out->to->capacity) return KVASIR_OK;
  return fake_fail(err, KVASIR_ERR_CAPACITY, "index is too small");
}
static inline kvasir_status fake_put_marked(struct fake_out* out, const struct fake_range* range,
                                            const uint8_t* keep) {
  for (uint32_t i = 0; i < range->n; ++i)
    if (keep[i]) fake_put(out, fake_at(range, i), 0.0f);
  fake_end_row(out);
  return KVASIR_OK;
}

/* ---- opaque state per sequence: seqs.bytes zeroed bytes each --------------------------------- */

struct fake_seq {
  struct fake_seq* next;
  uint64_t id;
  double state[];
};
struct fake_seqs {
  struct fake_seq* first;
  size_t bytes;
};
static inline void* fake_state(const struct fake_seqs* seqs, uint64_t id) {
  for (struct fake_seq* s = seqs->first; s; s = s->next)
    if (s->id == id) return s->state;
  return NULL;
}
static inline void* fake_open(struct fake_seqs* seqs, uint64_t id) {
  struct fake_seq* s = calloc(1, sizeof *s + seqs->bytes);
  if (s == NULL) return NULL;
  s->id = id;
  s->next = seqs->first;
  seqs->first = s;
  return s->state;
}
static inline void fake_close(struct fake_seqs* seqs, uint64_t id) {
  for (struct fake_seq** at = &seqs->first; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      struct fake_seq* gone = *at;
      *at = gone->next;
      free(gone);
      return;
    }
}

/* The four seq_* slots over self->seqs; cut(self, state, kv_len) forgets the tail. */
#define FAKE_SEQUENCES(cut)                                                                       \
  static kvasir_status fake_seq_open(void* self, const uint64_t* ids, uint32_t n,                 \
                                     kvasir_err* err) {                                           \
    for (uint32_t i = 0; i < n; ++i)                                                              \
      if (!fake_open(&((struct self*)self)->seqs, ids[i]))                                        \
        return fake_fail(err, KVASIR_ERR_OUT_OF_MEMORY, "no memory for a sequence");              \
    return KVASIR_OK;                                                                             \
  }                                                                                               \
  static kvasir_status fake_seq_fork(void* self, const uint64_t* parents,                         \
                                     const uint64_t* children, uint32_t n, kvasir_err* err) {     \
    struct fake_seqs* seqs = &((struct self*)self)->seqs;                                         \
    for (uint32_t i = 0; i < n; ++i) {                                                            \
      const void* from = fake_state(seqs, parents[i]);                                            \
      void* to = from ? fake_open(seqs, children[i]) : NULL;                                      \
      if (to == NULL) return fake_fail(err, KVASIR_ERR_INVALID, "fork of an unknown sequence");   \
      memcpy(to, from, seqs->bytes);                                                              \
    }                                                                                             \
    return KVASIR_OK;                                                                             \
  }                                                                                               \
  static kvasir_status fake_seq_truncate(void* self, const uint64_t* ids, const uint32_t* kv_len, \
                                         uint32_t n, kvasir_err* err) {                           \
    for (uint32_t i = 0; i < n; ++i) {                                                            \
      void* state = fake_state(&((struct self*)self)->seqs, ids[i]);                              \
      if (!state) return fake_fail(err, KVASIR_ERR_INVALID, "truncate of an unknown sequence");   \
      cut(self, state, kv_len[i]);                                                                \
    }                                                                                             \
    return KVASIR_OK;                                                                             \
  }                                                                                               \
  static void fake_seq_close(void* self, const uint64_t* ids, uint32_t n) {                       \
    for (uint32_t i = 0; i < n; ++i) fake_close(&((struct self*)self)->seqs, ids[i]);             \
  }
#define FAKE_SEQUENCE_SLOTS(base)                                   \
  (base).seq_open = fake_seq_open, (base).seq_fork = fake_seq_fork, \
  (base).seq_truncate = fake_seq_truncate, (base).seq_close = fake_seq_close

/* ---- the table: struct self begins with the kind's table `t`, and has g, seqs and work ------- */

#define FAKE_WORK(s_, type_, n_) ((type_*)fake_work(&(s_)->work, (n_) * sizeof(type_)))
static inline void* fake_work(void** work, size_t bytes) { /* contents undefined */
  free(*work);
  return *work = malloc(bytes ? bytes : 1);
}

#define FAKE_PLUGIN(kind_, id_, summary_, caps_, needs_, provides_, options_)                     \
  KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(kind_), id_ "\0", "0.1.0");                                  \
  static const kvasir_desc fake_desc = {.struct_size = sizeof(kvasir_desc),                       \
                                        .kind = kind_,                                            \
                                        .id = id_,                                                \
                                        .version = "0.1.0",                                       \
                                        .name = id_,                                              \
                                        .vendor = "kvasir tests",                                 \
                                        .url = "",                                                \
                                        .license = "Apache-2.0",                                  \
                                        .summary = summary_,                                      \
                                        .options = options_,                                      \
                                        .n_options = sizeof options_ / sizeof options_[0],        \
                                        .option_size = sizeof(kvasir_option_schema),              \
                                        .caps = caps_,                                            \
                                        .needs = needs_,                                          \
                                        .provides = provides_,                                    \
                                        .dtypes = FAKE_FLOATS};                                   \
  static kvasir_status fake_bind(void* self, const kvasir_geometry* g, kvasir_err* err) {         \
    memcpy(&((struct self*)self)->g, g, g->struct_size < sizeof *g ? g->struct_size : sizeof *g); \
    return ready(self, err);                                                                      \
  }                                                                                               \
  static const void* fake_extension(void* self, const char* id) {                                 \
    static const fake_probe probe_table = {sizeof probe_table, 0, probe};                         \
    (void)self;                                                                                   \
    return strcmp(id, FAKE_PROBE) == 0 ? &probe_table : NULL;                                     \
  }                                                                                               \
  static void fake_destroy(void* self) {                                                          \
    struct self* s = self;                                                                        \
    unready(s);                                                                                   \
    while (s->seqs.first) fake_close(&s->seqs, s->seqs.first->id);                                \
    free(s->work);                                                                                \
    free(s);                                                                                      \
  }                                                                                               \
  static uint32_t fake_count(void) { return 1; }                                                  \
  static const kvasir_desc* fake_describe(uint32_t i) { return i == 0 ? &fake_desc : NULL; }      \
  static void fake_shutdown(void) {}                                                              \
  static kvasir_status fake_create(uint32_t index, const kvasir_host* host,                       \
                                   const kvasir_option* given, uint32_t n, uint32_t size,         \
                                   kvasir_instance** out, kvasir_err* err) {                      \
    struct self* s = index == 0 ? calloc(1, sizeof *s) : NULL;                                    \
    if (s == NULL) return fake_fail(err, KVASIR_ERR_INVALID, "no such plugin, or no memory");     \
    kvasir_instance* base = (kvasir_instance*)(void*)s;                                           \
    base->struct_size = sizeof s->t;                                                              \
    base->kind = kind_;                                                                           \
    base->self = s;                                                                               \
    base->desc = &fake_desc;                                                                      \
    base->bind = fake_bind;                                                                       \
    base->destroy = fake_destroy;                                                                 \
    base->get_extension = fake_extension;                                                         \
    const struct fake_options read = {given, n, size};                                            \
    make(s, &read, host);                                                                         \
    *out = base;                                                                                  \
    return KVASIR_OK;                                                                             \
  }                                                                                               \
  static const kvasir_plugin fake_plugin = {sizeof fake_plugin, 0,           fake_count,          \
                                            fake_describe,      fake_create, fake_shutdown};      \
  kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,             \
                                    kvasir_err* err) {                                            \
    if (host->abi_major != KVASIR_ABI_MAJOR || host->abi_minor_max < KVASIR_ABI_MINOR)            \
      return fake_fail(err, KVASIR_ERR_VERSION, "the host is too old for this fake");             \
    request->abi_minor = KVASIR_ABI_MINOR;                                                        \
    request->plugin = &fake_plugin;                                                               \
    return KVASIR_OK;                                                                             \
  }

#endif
