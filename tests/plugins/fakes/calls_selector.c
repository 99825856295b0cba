/* A selector that writes down how it is called (calls.h). It keeps every `every`-th candidate
 * (u % every == 0), or with `rows` flags whole rows: all, none, or none for odd heads and all for
 * even ones; `weight` non-zero: with log-weight -weight on every listed index.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/calls.h"

#include "tests/plugins/fakes/fake.h"

static const char* const units[] = {"block", "token"};
static const char* const row_kinds[] = {"listed", "all", "none", "mixed", "half_listed"};
enum { rows_listed, rows_all, rows_none, rows_mixed, rows_half_listed };

struct self {
  kvasir_selector t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  calls book;
  uint32_t unit, rows, every, reuse_steps, max_units, mass_level, mass_reduce, mass_queries;
  uint32_t layout_flags, open_bytes, refresh, updates;
  float weight;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  (void)s, (void)err;
  return KVASIR_OK;
}
static void clear(void* self) {
  calls* book = &((struct self*)self)->book;
  for (uint32_t i = 0; i < book->n; ++i) {
    free(book->at[i].offsets), free(book->at[i].index), free(book->at[i].value);
    free(book->at[i].items);
  }
  free(book->at);
  book->at = NULL;
  book->n = 0;
}
static void unready(struct self* s) { clear(s); }

static kvasir_status limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  const struct self* s = self;
  (void)err;
  out->unit = s->unit;
  out->scope = KVASIR_SCOPE_KV_HEAD;
  out->max_units = s->max_units;
  if (s->mass_level) {
    out->mass_at = KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE;
    out->mass_level = s->mass_level;
    out->mass_reduce = s->mass_reduce;
    out->mass_last_queries = s->mass_queries ? s->mass_queries : UINT32_MAX;
  }
  return KVASIR_OK;
}
static kvasir_status layout(void* self, kvasir_layout* out, kvasir_err* err) {
  (void)err;
  out->flags = ((struct self*)self)->layout_flags;
  out->open_bytes = ((struct self*)self)->open_bytes;
  out->refresh_tokens = ((struct self*)self)->refresh;
  return KVASIR_OK;
}

static recorded_call* note(struct self* s, uint32_t function, const kvasir_step* step) {
  s->book.at = realloc(s->book.at, (s->book.n + 1) * sizeof *s->book.at);
  recorded_call* call = &s->book.at[s->book.n++];
  memset(call, 0, sizeof *call);
  call->function = function;
  call->layer = step->layer, call->moment = step->moment, call->flags = step->flags;
  call->n_rows = step->n_rows;
  for (uint32_t r = 0; r < step->n_rows && r < 8; ++r) call->row[r] = *fake_row(step, r);
  return call;
}
static void* copy_of(const void* from, size_t bytes) {
  void* to = malloc(bytes + 1);
  if (to && bytes) memcpy(to, from, bytes);
  return to;
}

static kvasir_status select_units(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                  kvasir_selection* out, kvasir_err* err) {
  struct self* s = self;
  (void)in;
  note(s, CALL_SELECT, step);
  if (s->weight != 0) out->weight_width = 1;
  out->reuse_steps = s->reuse_steps;
  struct fake_out rows = fake_begin(out);
  for (uint32_t r = 0; r < step->n_rows; ++r)
    for (uint32_t h = 0; h < s->g.n_kv_heads; ++h) {
      const struct fake_range range = fake_candidates(step, r, h, s->g.n_kv_heads);
      const uint32_t odd = h % 2;
      uint32_t flag = KVASIR_ROW_LISTED;
      if (s->rows == rows_all || (s->rows == rows_mixed && !odd)) flag = KVASIR_ROW_ALL;
      if (s->rows == rows_none || (s->rows == rows_mixed && odd)) flag = KVASIR_ROW_NONE;
      if (s->rows == rows_half_listed && odd) flag = KVASIR_ROW_ALL;
      out->row_flags[out->n_rows] = flag;
      for (uint32_t i = 0; flag == KVASIR_ROW_LISTED && i < range.n; ++i)
        if (fake_at(&range, i) % s->every == 0) fake_put(&rows, fake_at(&range, i), -s->weight);
      fake_end_row(&rows);
    }
  return fake_end(&rows, err);
}
static kvasir_status observe(void* self, const kvasir_step* step, const kvasir_mass* mass,
                             kvasir_err* err) {
  recorded_call* call = note(self, CALL_OBSERVE, step);
  const uint64_t n = mass->row_offsets[mass->n_rows];
  (void)err;
  call->n_queries = mass->n_queries;
  call->n_mass_rows = mass->n_rows;
  call->offsets = copy_of(mass->row_offsets, (mass->n_rows + 1) * sizeof *call->offsets);
  call->index = copy_of(mass->index, n * sizeof *call->index);
  if (mass->value) call->value = copy_of(mass->value, n * sizeof *call->value);
  return KVASIR_OK;
}
static kvasir_status update(void* self, const kvasir_step* step, const kvasir_update_item* items,
                            uint32_t n, uint32_t size, kvasir_err* err) {
  recorded_call* call = note(self, CALL_UPDATE, step);
  (void)err;
  call->n_items = n;
  call->items = calloc(n + 1, sizeof *call->items);
  for (uint32_t i = 0; i < n; ++i) {
    call->items[i] = *fake_item(items, i, size);
    call->items[i].lease = NULL, call->items[i].mass = NULL;
  }
  return KVASIR_OK;
}

static const void* extension(void* self, const char* id) {
  return strcmp(id, CALLS_EXTENSION) == 0 ? &((struct self*)self)->book : NULL;
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item == 0 ? ((struct self*)self)->book.n : (double)NAN;
}
static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  (void)host;
  s->book.struct_size = sizeof s->book;
  s->book.self = s;
  s->book.clear = clear;
  s->unit = fake_u32(o, "unit"), s->rows = fake_u32(o, "rows"), s->every = fake_u32(o, "every");
  s->reuse_steps = fake_u32(o, "reuse_steps"), s->max_units = fake_u32(o, "max_units");
  s->mass_level = fake_u32(o, "mass_level"), s->mass_reduce = fake_u32(o, "mass_reduce");
  s->mass_queries = fake_u32(o, "mass_queries"), s->updates = fake_u32(o, "updates");
  s->layout_flags = fake_u32(o, "layout_flags"), s->refresh = fake_u32(o, "refresh");
  s->open_bytes = fake_u32(o, "open_bytes");
  s->weight = (float)fake_option(o, "weight").f;
  s->t.limits = limits, s->t.select = select_units;
  if (s->mass_level) s->t.observe = observe;
  if (s->updates) s->t.update = update, s->t.layout = layout;
  s->t.base.get_extension = extension;
}
static const kvasir_option_schema options[] = {
    FAKE_ENUM("unit", units, 2, "of its rows"),
    FAKE_ENUM("rows", row_kinds, sizeof row_kinds / sizeof *row_kinds, "what rows look like"),
    FAKE_INT("every", 2, 1, 1 << 30, "candidates u with u % every = 0 are kept"),
    FAKE_INT("reuse_steps", 0, 0, 4294967295, "further steps the host may keep a selection"),
    FAKE_INT("max_units", 0, 0, 1 << 30, "as limits() says"),
    FAKE_INT("mass_level", 0, 0, 3, "KVASIR_MASS_*"),
    FAKE_INT("mass_reduce", 0, 0, 2, "KVASIR_MASS_PER_Q_HEAD and so on"),
    FAKE_INT("mass_queries", 0, 0, 1 << 30, "of the prompt's last; 0 = all"),
    FAKE_INT("updates", 0, 0, 1, "whether update() is wanted"),
    FAKE_INT("layout_flags", 0, 0, 1 << 30, "KVASIR_LAYOUT_*"),
    FAKE_INT("open_bytes", 0, 0, 1 << 30, "layout.open_bytes"),
    FAKE_INT("refresh", 0, 0, 1 << 30, "layout.refresh_tokens"),
    FAKE_FLOAT("weight", 0.0, 0.0, 1e9, "what listed indices weigh less")};
FAKE_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.calls", "writes down how it is called", 0,
            KVASIR_NEED_MASS | KVASIR_NEED_LOG_WEIGHT | KVASIR_NEED_TOKEN_ROWS, 0, options)
