// Calls of selectors and backends that leave lists on the device: kvasir.device-lists/1 and
// kvasir.device-list-reader/1.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"

namespace kvasir {

bool Selector::leaves_lists() const {
  if (!device_lists_) {
    const auto* t = static_cast<const kvasir_device_lists*>(extension(KVASIR_EXT_DEVICE_LISTS));
    device_lists_ = t && KVASIR_HAS(t, kvasir_device_lists, select) ? t : nullptr;
  }
  return *device_lists_ != nullptr;
}

kvasir_status Selector::select_there(const kvasir_step& step, const kvasir_sel_in& in,
                                     kvasir_selection& out, const kvasir_view& index) {
  require(leaves_lists(), KVASIR_EXT_DEVICE_LISTS);
  return step_call("select", &step,
                   [&](kvasir_err* err) {
                     return (*device_lists_)->select(base().self, &step, &in, &out, &index, err);
                   },
                   {KVASIR_FALLBACK});
}

bool Attention::reads_lists() const {
  if (!list_reader_) {
    const auto* t =
        static_cast<const kvasir_device_list_reader*>(extension(KVASIR_EXT_DEVICE_LIST_READER));
    const bool is_whole =
        t && KVASIR_HAS(t, kvasir_device_list_reader, forget) && t->kept_bytes && t->run;
    list_reader_ = is_whole ? t : nullptr;
  }
  return *list_reader_ != nullptr;
}

uint64_t Attention::kept_bytes(uint64_t n_blocks) const {
  require(reads_lists(), KVASIR_EXT_DEVICE_LIST_READER);
  return unfailing_call("kept_bytes",
                        [&] { return (*list_reader_)->kept_bytes(base().self, n_blocks); });
}

void Attention::run_with_lists(const kvasir_step& step, const kvasir_attn_in& in,
                               const kvasir_attn_lists& lists, kvasir_attn_out& out) {
  require(reads_lists(), KVASIR_EXT_DEVICE_LIST_READER);
  step_call("run", &step, [&](kvasir_err* err) {
    return (*list_reader_)->run(base().self, &step, &in, &lists, &out, err);
  });
}

void Attention::forget(uint64_t seq) const noexcept {
  unfailing_call("forget", [&] { (*list_reader_)->forget(base().self, seq); });
}

}  // namespace kvasir
