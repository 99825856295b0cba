/* Selector "strided": attends to every n-th candidate block. A whole plugin, to copy and change.
 * gcc -std=c11 -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags kvasir) \
 *     strided.c -o strided.so
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <kvasir/kvasir.h>
#include <stdlib.h>
#include <string.h>

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "org.example.strided\0", "1.0.0");

static const kvasir_option_schema options[] = {{.struct_size = sizeof(kvasir_option_schema),
                                                .type = KVASIR_OPTION_INT,
                                                .key = "stride",
                                                .unit = "blocks",
                                                .help = "distance between attended blocks",
                                                .def = {.type = KVASIR_OPTION_INT, .i = 4},
                                                .min = {.type = KVASIR_OPTION_INT, .i = 1},
                                                .max = {.type = KVASIR_OPTION_INT, .i = 1 << 20}}};

static const kvasir_desc desc = {.struct_size = sizeof desc,
                                 .kind = KVASIR_KIND_SELECTOR,
                                 .id = "org.example.strided",
                                 .version = "1.0.0",
                                 .name = "Strided",
                                 .vendor = "example.org",
                                 .license = "MIT",
                                 .url = "",
                                 .summary = "every n-th candidate block",
                                 .options = options,
                                 .n_options = 1,
                                 .option_size = sizeof options[0]};

struct strided {
  kvasir_selector table;
  uint32_t stride;
};

static kvasir_status fail(kvasir_err* err, kvasir_status code, const char* text) {
  err->code = code;
  strncpy(err->text, text, sizeof err->text - 1);
  return code;
}

static kvasir_status bind_run(void* self, const kvasir_geometry* geometry, kvasir_err* err) {
  (void)self, (void)geometry, (void)err; /* nothing to allocate */
  return KVASIR_OK;
}

static kvasir_status get_limits(void* self, kvasir_sel_limits* out, kvasir_err* err) {
  (void)self, (void)err;
  out->unit = KVASIR_UNIT_BLOCK;
  out->scope = KVASIR_SCOPE_SEQUENCE; /* one list per sequence, for all heads */
  return KVASIR_OK;
}

/* Candidate i of a row: from the list when an earlier selector made one, else from the range. */
static kvasir_status select_blocks(void* self, const kvasir_step* step, const kvasir_sel_in* in,
                                   kvasir_selection* out, kvasir_err* err) {
  const uint32_t stride = ((struct strided*)self)->stride;
  const kvasir_selection* list = step->candidates;
  uint64_t n = 0;
  (void)in;
  for (uint32_t r = 0; r < step->n_rows; ++r) {
    const char* row_bytes = (const char*)step->rows + (size_t)r * step->row_size;
    const kvasir_step_row* row = (const kvasir_step_row*)(const void*)row_bytes;
    const uint64_t count = list ? list->row_offsets[r + 1] - list->row_offsets[r]
                                : (uint64_t)row->unit_end - row->unit_begin;
    out->row_offsets[r] = n;
    for (uint64_t i = 0; i < count; i += stride, ++n)
      if (n < out->capacity)
        out->index[n] =
            list ? list->index[list->row_offsets[r] + i] : row->unit_begin + (uint32_t)i;
  }
  out->row_offsets[step->n_rows] = n;
  out->n_rows = step->n_rows;
  out->needed = n;
  return n <= out->capacity ? KVASIR_OK : fail(err, KVASIR_ERR_CAPACITY, "index is too small");
}

static void destroy(void* self) { free(self); }

static uint32_t n_plugins(void) { return 1; }
static const kvasir_desc* describe(uint32_t index) { return index == 0 ? &desc : NULL; }
static void shut_down(void) {}

static kvasir_status create(uint32_t index, const kvasir_host* host, const kvasir_option* opts,
                            uint32_t n, uint32_t option_size, kvasir_instance** out,
                            kvasir_err* err) {
  (void)host;
  if (index != 0 || n != 1 || option_size < sizeof(kvasir_option))
    return fail(err, KVASIR_ERR_INVALID, "strided: one plugin with one option, stride");
  struct strided* self = calloc(1, sizeof *self);
  if (self == NULL) return fail(err, KVASIR_ERR_OUT_OF_MEMORY, "strided: out of memory");
  self->stride = (uint32_t)opts[0].value.i; /* in schema order, checked against min and max */
  self->table = (kvasir_selector){.base = {.struct_size = sizeof(kvasir_selector),
                                           .kind = KVASIR_KIND_SELECTOR,
                                           .self = self,
                                           .desc = &desc,
                                           .bind = bind_run,
                                           .destroy = destroy},
                                  .limits = get_limits,
                                  .select = select_blocks};
  *out = &self->table.base;
  return KVASIR_OK;
}

static const kvasir_plugin plugin = {.struct_size = sizeof plugin,
                                     .count = n_plugins,
                                     .describe = describe,
                                     .create = create,
                                     .shutdown = shut_down};

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) {
  if (host->abi_major != KVASIR_ABI_MAJOR || host->abi_minor_max < KVASIR_ABI_MINOR)
    return fail(err, KVASIR_ERR_VERSION, "strided: built for a newer kvasir; rebuild or update it");
  request->abi_minor = KVASIR_ABI_MINOR;
  request->plugin = &plugin;
  return KVASIR_OK;
}
