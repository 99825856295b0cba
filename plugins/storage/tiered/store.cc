// See store.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store.h"

namespace kvasir::tiered {

void Store::name_run(const Hash& run, const std::string& about) {
  std::string why;
  if (folder_.open_run(run, about, why)) {
    run_ = run;
  } else {
    host_.log(KVASIR_LOG_WARN, "the store in " + folder_.path() + " cannot be used (" + why +
                                   "): nothing is kept there or found");
  }
}

Memory Store::find(const kvasir_block_key& key) {
  if (!run_) return nullptr;
  Memory memory = allocate(layout_.block_bytes);
  std::string why;
  const StoreFolder::Found found = folder_.read(name_of(key), layout_, memory.get(), why);
  if (found == StoreFolder::Found::kBad && !std::exchange(bad_told_, true))
    host_.log(KVASIR_LOG_WARN,
              why + ": it is removed, its tokens are computed anew; of others this is not said");
  if (found != StoreFolder::Found::kYes) return nullptr;
  tokens_found_ += uint64_t{layout_.block_size} * layout_.n_kv_heads;
  return memory;
}

}  // namespace kvasir::tiered
