/* An attention backend in double precision and plain loops, with mass, that writes down what it was
 * asked to attend to (recording.h). Each part's rows are spread out into lists of tokens first; run
 * and mass are then sums over these lists. SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/fakes/recording.h"

#include <dlfcn.h>

#include "tests/plugins/fakes/fake.h"

struct self {
  kvasir_attention t;
  kvasir_geometry g;
  struct fake_seqs seqs;
  void* work;
  recording book;
  const kvasir_attention* inner; /* does the arithmetic instead, or null */
  int inner_wanted;
};
static kvasir_status ready(struct self* s, kvasir_err* err) {
  if (!s->inner_wanted) return KVASIR_OK;
  if (!s->inner) return fake_fail(err, KVASIR_ERR_INVALID, "the inner backend does not load");
  return s->inner->base.bind(s->inner->base.self, &s->g, err);
}
static void free_run(recorded_run* run) {
  for (uint32_t i = 0; i < run->n_rows; ++i)
    free(run->rows[i].token), free(run->rows[i].item), free(run->rows[i].weight);
  for (uint32_t i = 0; i < run->n_k; ++i) free(run->k[i]);
  free(run->rows), free(run->q), free(run->k);
}
static void clear(void* self) {
  recording* book = &((struct self*)self)->book;
  for (uint32_t i = 0; i < book->n_runs; ++i) free_run(&book->runs[i]);
  free(book->runs);
  book->runs = NULL;
  book->n_runs = 0;
}
static void unready(struct self* s) {
  clear(s);
  if (s->inner) s->inner->base.destroy(s->inner->base.self);
}
static kvasir_status plan(void* self, const kvasir_attn_shape* shape, kvasir_attn_plan* out,
                          kvasir_err* err) {
  const kvasir_attention* inner = ((struct self*)self)->inner;
  return inner ? inner->plan(inner->base.self, shape, out, err) : KVASIR_OK;
}

/* ---- the input, spread out ------------------------------------------------------------------- */

static const kvasir_attn_part* part_at(const kvasir_attn_in* in, uint32_t p) {
  return (const kvasir_attn_part*)(const void*)((const char*)in->parts + (size_t)p * in->part_size);
}
static const kvasir_attn_row* row_at(const kvasir_attn_part* part, uint32_t r) {
  return (const kvasir_attn_row*)(const void*)((const char*)part->rows +
                                               (size_t)r * part->row_size);
}
static const kvasir_lease* lease_at(const kvasir_attn_part* part, uint32_t i) {
  return (const kvasir_lease*)(const void*)((const char*)part->leases +
                                            (size_t)i * part->lease_size);
}

static void spread_row(const struct self* s, const kvasir_attn_part* part,
                       const kvasir_attn_row* row, recorded_row* out) {
  const uint64_t n_items = row->item_end - row->item_begin;
  const uint32_t per = part->unit == KVASIR_UNIT_BLOCK ? s->g.block_size : 1;
  const uint32_t width = part->log_weight ? part->weight_width : 0;
  out->kv_head = row->kv_head, out->q_begin = row->q_begin, out->n_q = row->n_q;
  out->unit = part->unit, out->dist_min = part->dist_min, out->dist_max = part->dist_max;
  out->weight_width = width;
  out->token = malloc((n_items * per + 1) * sizeof *out->token);
  out->item = malloc((n_items * per + 1) * sizeof *out->item);
  out->weight = width ? malloc((n_items * per + 1) * width * sizeof *out->weight) : NULL;
  for (uint64_t at = row->item_begin; at < row->item_end; ++at) {
    const uint32_t item = part->items ? part->items[at] : (uint32_t)at;
    const int block = part->unit == KVASIR_UNIT_BLOCK;
    const kvasir_lease* lease = lease_at(part, block ? item : item / s->g.block_size);
    const uint32_t first = block ? 0 : item % s->g.block_size, n = block ? lease->n_tokens : 1;
    for (uint32_t t = 0; t < n; ++t) {
      for (uint32_t w = 0; w < width; ++w)
        out->weight[(size_t)out->n_tokens * width + w] = part->log_weight[at * width + w];
      out->item[out->n_tokens] = block ? item * s->g.block_size + t : item;
      out->token[out->n_tokens++] =
          lease->token_pos ? lease->token_pos[first + t] : lease->pos_begin + first + t;
    }
  }
}

static recorded_run spread(const struct self* s, const kvasir_step* step,
                           const kvasir_attn_in* in) {
  recorded_run run = {.layer = step->layer, .moment = step->moment, .n_parts = in->n_parts};
  uint32_t n = 0;
  for (uint32_t p = 0; p < in->n_parts; ++p) n += part_at(in, p)->n_rows;
  run.rows = calloc(n + 1, sizeof *run.rows);
  for (uint32_t p = 0; p < in->n_parts; ++p)
    for (uint32_t r = 0; r < part_at(in, p)->n_rows; ++r) {
      recorded_row* row = &run.rows[run.n_rows++];
      spread_row(s, part_at(in, p), row_at(part_at(in, p), r), row);
      row->part = p;
      for (uint32_t i = 0; i < step->n_rows; ++i) {
        const kvasir_step_row* of = fake_row(step, i);
        if (row->q_begin < of->q_begin || row->q_begin >= of->q_begin + of->n_q) continue;
        row->seq = of->seq, row->kv_len = of->kv_len;
      }
    }
  return run;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static const char* v_of(const struct self* s, const kvasir_lease* lease, uint32_t kv_head,
                        uint32_t t) {
  const kvasir_kv_format* format = &s->g.formats[lease->format];
  const uint64_t head = lease->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  return (const char*)lease->v + head * format->v_head_stride + t * format->v_token_stride;
}
/* Positions, keys and values of a row's tokens side by side, so that the sums below are plain. */
struct gathered {
  uint32_t* pos;
  float *k, *v;
};
static struct gathered gather(const struct self* s, const kvasir_attn_part* part,
                              const recorded_row* row) {
  const uint32_t n = row->n_tokens + 1, dim = s->g.head_dim, v_dim = s->g.v_dim;
  struct gathered out = {malloc(n * sizeof(uint32_t)), malloc((size_t)n * dim * sizeof(float)),
                         malloc((size_t)n * v_dim * sizeof(float))};
  for (uint32_t i = 0; i < row->n_tokens; ++i) {
    const kvasir_lease* lease = lease_at(part, row->item[i] / s->g.block_size);
    const uint32_t t = row->item[i] % s->g.block_size;
    const char* v = v_of(s, lease, row->kv_head, t);
    out.pos[i] = lease->token_pos ? lease->token_pos[t] : lease->pos_begin + t;
    for (uint32_t d = 0; d < dim; ++d)
      out.k[(size_t)i * dim + d] = fake_key(&s->g, lease, row->kv_head, t, d);
    for (uint32_t d = 0; d < v_dim; ++d)
      out.v[(size_t)i * v_dim + d] = fake_number(s->g.formats[lease->format].dtype_v, v, d);
  }
  return out;
}
static void forget(struct gathered* keys) { free(keys->pos), free(keys->k), free(keys->v); }

/* The logit of token i of a row for one query and head; -INFINITY when it is not seen. */
static double logit_of(const struct self* s, const kvasir_attn_part* part, const recorded_row* row,
                       const struct gathered* keys, uint32_t i, uint32_t query, uint32_t q_head) {
  const uint32_t group = s->g.n_q_heads / s->g.n_kv_heads;
  const uint32_t pos = keys->pos[i], q_pos = part->q_pos[query];
  if (pos > q_pos || q_pos - pos < row->dist_min) return -INFINITY;
  if (row->dist_max != UINT32_MAX && q_pos - pos >= row->dist_max) return -INFINITY;
  const float* q = fake_q(&part->q, query, q_head);
  const float* k = keys->k + (size_t)i * s->g.head_dim;
  double dot = 0;
  for (uint32_t d = 0; d < s->g.head_dim; ++d) dot += (double)q[d] * (double)k[d];
  dot *= (double)s->g.softmax_scale;
  if (s->g.softcap > 0) dot = (double)s->g.softcap * tanh(dot / (double)s->g.softcap);
  if (!row->weight) return dot;
  const uint32_t w = row->weight_width > 1 ? q_head % group : 0;
  return dot + (double)row->weight[(size_t)i * row->weight_width + w];
}

/* Adds the tokens of one row to (largest, sum, o[v_dim]) of one query and head. */
static void add_row(const struct self* s, const kvasir_attn_part* part, const recorded_row* row,
                    const struct gathered* keys, uint32_t query, uint32_t q_head, double* state) {
  for (uint32_t i = 0; i < row->n_tokens; ++i) {
    const double logit = logit_of(s, part, row, keys, i, query, q_head);
    if (logit == -INFINITY) continue;
    const float* v = keys->v + (size_t)i * s->g.v_dim;
    if (logit > state[0]) {
      const double keep = exp(state[0] - logit);
      for (uint32_t d = 0; d < 1 + s->g.v_dim; ++d) state[1 + d] *= keep;
      state[0] = logit;
    }
    const double add = exp(logit - state[0]);
    state[1] += add;
    for (uint32_t d = 0; d < s->g.v_dim; ++d) state[2 + d] += add * (double)v[d];
  }
}

/* States [query][q_head] of (largest, sum, o[v_dim]); untouched pairs keep `named` at 0. */
static void attend(struct self* s, const kvasir_attn_in* in, const recorded_run* run,
                   kvasir_attn_out* out) {
  const uint32_t group = s->g.n_q_heads / s->g.n_kv_heads, width = 2 + s->g.v_dim;
  const size_t n_pairs = part_at(in, 0)->q.shape[0] * s->g.n_q_heads;
  double* state = calloc(n_pairs * width + 1, sizeof *state);
  uint8_t* named = calloc(n_pairs + 1, 1);
  for (size_t at = 0; at < n_pairs; ++at) state[at * width] = -INFINITY;
  for (uint32_t r = 0; r < run->n_rows; ++r) {
    const recorded_row* row = &run->rows[r];
    struct gathered keys = gather(s, part_at(in, row->part), row);
    for (uint32_t query = row->q_begin; query < row->q_begin + row->n_q; ++query)
      for (uint32_t h = row->kv_head * group; h < (row->kv_head + 1) * group; ++h) {
        const size_t at = (size_t)query * s->g.n_q_heads + h;
        named[at] = 1;
        add_row(s, part_at(in, row->part), row, &keys, query, h, state + at * width);
      }
    forget(&keys);
  }
  for (size_t at = 0; at < n_pairs; ++at) {
    const double* of = state + at * width;
    if (!named[at]) continue;
    out->lse[at] = of[1] > 0 ? (float)(of[0] + log(of[1])) : -INFINITY;
    for (uint32_t d = 0; d < s->g.v_dim; ++d)
      out->o[at * s->g.v_dim + d] = of[1] > 0 ? (float)(of[2 + d] / of[1]) : 0.0f;
  }
  free(state);
  free(named);
}

/* ---- the book -------------------------------------------------------------------------------- */

/* Keys of one sequence, found through a part that serves it. */
static float* keys_of(const struct self* s, const kvasir_attn_in* in, const recorded_run* run,
                      const kvasir_step_row* of) {
  const kvasir_attn_part* part = NULL;
  for (uint32_t r = 0; r < run->n_rows && !part; ++r)
    if (run->rows[r].seq == of->seq) part = part_at(in, run->rows[r].part);
  float* k = calloc((size_t)s->g.n_kv_heads * of->kv_len * s->g.head_dim + 1, sizeof *k);
  for (uint32_t h = 0; part && k && h < s->g.n_kv_heads; ++h)
    for (uint32_t token = 0; token < of->kv_len; ++token) {
      const kvasir_lease* lease = lease_at(part, token / s->g.block_size);
      for (uint32_t d = 0; lease->k && d < s->g.head_dim; ++d)
        k[((size_t)h * of->kv_len + token) * s->g.head_dim + d] =
            fake_key(&s->g, lease, h, token % s->g.block_size, d);
    }
  return k;
}
static void write_down(struct self* s, const kvasir_step* step, const kvasir_attn_in* in,
                       recorded_run run) {
  if (s->book.armed > 1) {
    const kvasir_view* q = &part_at(in, 0)->q;
    const size_t n = s->g.n_q_heads * s->g.head_dim;
    run.n_queries = q->shape[0];
    run.q = malloc(run.n_queries * n * sizeof *run.q);
    for (uint64_t i = 0; i < run.n_queries; ++i)
      memcpy(run.q + i * n, fake_q(q, (uint32_t)i, 0), n * sizeof *run.q);
    run.n_k = step->n_rows;
    run.k = calloc(run.n_k + 1, sizeof *run.k);
    for (uint32_t i = 0; i < run.n_k; ++i) run.k[i] = keys_of(s, in, &run, fake_row(step, i));
  }
  s->book.runs = realloc(s->book.runs, (s->book.n_runs + 1) * sizeof *s->book.runs);
  s->book.runs[s->book.n_runs++] = run;
}

static kvasir_status run_parts(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                               kvasir_attn_out* out, kvasir_err* err) {
  struct self* s = self;
  s->book.n_calls += 1;
  recorded_run run = spread(s, step, in);
  kvasir_status status = KVASIR_OK;
  if (s->inner)
    status = s->inner->run(s->inner->base.self, step, in, out, err);
  else
    attend(s, in, &run, out);
  if (s->book.armed)
    write_down(s, step, in, run);
  else
    free_run(&run);
  return status;
}

static kvasir_status mass(void* self, const kvasir_step* step, const kvasir_attn_in* in,
                          const kvasir_attn_mass* out, kvasir_err* err) {
  struct self* s = self;
  const uint32_t group = s->g.n_q_heads / s->g.n_kv_heads;
  kvasir_status status = KVASIR_OK;
  s->book.n_calls += 1;
  if (s->inner) return s->inner->mass(s->inner->base.self, step, in, out, err);
  recorded_run run = spread(s, step, in);
  for (uint32_t r = 0; r < run.n_rows; ++r) {
    const recorded_row* row = &run.rows[r];
    if (out->row_offsets[r + 1] - out->row_offsets[r] != row->n_tokens)
      status = fake_fail(err, KVASIR_ERR_INVALID, "row_offsets do not fit the rows");
    struct gathered keys = gather(s, part_at(in, row->part), row);
    for (uint32_t i = 0; status == KVASIR_OK && i < row->n_tokens; ++i) {
      float* value = out->value + (out->row_offsets[r] + i) * out->width;
      double sum = 0;
      for (uint32_t g = 0; g < group; ++g) {
        const uint32_t h = row->kv_head * group + g;
        for (uint32_t query = row->q_begin; query < row->q_begin + row->n_q; ++query)
          sum += exp(logit_of(s, part_at(in, row->part), row, &keys, i, query, h) -
                     (double)out->lse[(size_t)query * s->g.n_q_heads + h]);
        if (out->width > 1) value[g] = (float)sum, sum = 0;
      }
      if (out->width == 1) value[0] = (float)sum;
    }
    forget(&keys);
  }
  free_run(&run);
  return status;
}

static const void* extension(void* self, const char* id) {
  return strcmp(id, RECORDING_EXTENSION) == 0 ? &((struct self*)self)->book : NULL;
}
static double probe(void* self, uint64_t seq, uint32_t layer, uint32_t item) {
  (void)seq, (void)layer;
  return item == 0 ? ((struct self*)self)->book.n_calls : (double)NAN;
}
/* The first plugin of the file, with its default options; null when that fails. */
static const kvasir_attention* load(const char* path, const kvasir_host* host) {
  kvasir_err err = {.struct_size = sizeof err};
  kvasir_request request = {.struct_size = sizeof request};
  kvasir_instance* instance = NULL;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* plugins are never unloaded */
  kvasir_status (*entry)(const kvasir_host*, kvasir_request*, kvasir_err*) = NULL;
  if (library) *(void**)(void*)&entry = dlsym(library, "kvasir_plugin_entry");
  if (!entry || entry(host, &request, &err) != KVASIR_OK) return NULL;
  const kvasir_desc* desc = request.plugin->describe(0);
  kvasir_option option[16];
  uint32_t n = 0;
  for (uint32_t i = 0; i < desc->n_options && n < 16; ++i)
    if (!(desc->options[i].flags & KVASIR_OPTION_OPTIONAL))
      option[n++] = (kvasir_option){desc->options[i].key, desc->options[i].def, 0, 0};
  if (request.plugin->create(0, host, option, n, sizeof *option, &instance, &err) != KVASIR_OK)
    return NULL;
  return (const kvasir_attention*)(const void*)instance;
}
static void make(struct self* s, const struct fake_options* o, const kvasir_host* host) {
  const char* path = fake_option(o, "inner").s;
  s->inner_wanted = path != NULL;
  if (path) s->inner = load(path, host);
  s->book.struct_size = sizeof s->book;
  s->book.self = s;
  s->book.clear = clear;
  s->t.plan = plan, s->t.run = run_parts, s->t.mass = mass;
  s->t.base.get_extension = extension;
}
static const kvasir_option_schema options[] = {
    {.struct_size = sizeof(kvasir_option_schema),
     .type = KVASIR_OPTION_PATH,
     .flags = KVASIR_OPTION_OPTIONAL,
     .key = "inner",
     .help = "backend that does the arithmetic instead"}};
FAKE_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.recording_attention",
            "double precision, writes down what it attends to", 0, 0,
            KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT | KVASIR_PROVIDE_HEAD_LOG_WEIGHT |
                KVASIR_PROVIDE_TOKEN_ROWS | KVASIR_PROVIDE_DISTANCE,
            options)
