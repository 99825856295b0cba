/* Convenience for plugins in C. Nothing here crosses the ABI: use it, copy it, or do without.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_C_PLUGIN_H
#define KVASIR_C_PLUGIN_H

#include <kvasir/entry.h>
#include <kvasir/step.h>

/* return kvasir_fail(err, KVASIR_ERR_INVALID, "what, where, what to do"); */
static inline kvasir_status kvasir_fail(kvasir_err* err, kvasir_status status, const char* text) {
  uint32_t n = 0;
  for (; text[n] != '\0' && n + 1 < KVASIR_ERR_TEXT_BYTES; ++n) err->text[n] = text[n];
  err->text[n] = '\0';
  err->code = status;
  return status;
}

/* Sequence i of a step; those of a newer host may be longer structs. */
static inline const kvasir_step_seq* kvasir_step_seq_at(const kvasir_step* step, uint32_t i) {
  const char* first = (const char*)step->seqs;
  return (const kvasir_step_seq*)(const void*)(first + (uint64_t)i * step->seq_size);
}

/* static const kvasir_option_schema option = KVASIR_INT_OPTION("stride", "blocks", …); */
#define KVASIR_INT_OPTION(key_, unit_, help_, def_, min_, max_)                             \
  {                                                                                         \
    sizeof(kvasir_option_schema), KVASIR_OPTION_INT, 0u, 0u, key_, 0, 0, unit_, help_,      \
        {KVASIR_OPTION_INT, 0u, def_, 0.0, 0, 0}, {KVASIR_OPTION_INT, 0u, min_, 0.0, 0, 0}, \
        {KVASIR_OPTION_INT, 0u, max_, 0.0, 0, 0}, 0, 0                                      \
  }

/* Last in a file with one plugin, beside the note: its table and the entry. desc_: a static
 * kvasir_desc; create_: as in kvasir_plugin. */
#define KVASIR_PLUGIN_ENTRY(desc_, create_)                                                     \
  static uint32_t kvasir_count_(void) KVASIR_NOEXCEPT { return 1u; }                            \
  static const kvasir_desc* kvasir_describe_(uint32_t index) KVASIR_NOEXCEPT {                  \
    return index == 0u ? &(desc_) : 0;                                                          \
  }                                                                                             \
  static const kvasir_plugin kvasir_plugin_ = {sizeof(kvasir_plugin), 0u,      kvasir_count_,   \
                                               kvasir_describe_,      create_, 0};              \
  kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,           \
                                    kvasir_err* err) KVASIR_NOEXCEPT {                          \
    if (host->abi_major != KVASIR_ABI_MAJOR || host->abi_minor_min > KVASIR_ABI_MINOR ||        \
        host->abi_minor_max < KVASIR_ABI_MINOR)                                                 \
      return kvasir_fail(err, KVASIR_ERR_VERSION,                                               \
                         "built for another version of kvasir: rebuild it, or use a host that " \
                         "fits");                                                               \
    request->abi_minor = KVASIR_ABI_MINOR;                                                      \
    request->plugin = &kvasir_plugin_;                                                          \
    return KVASIR_OK;                                                                           \
  }

#endif
