// See store.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store.h"

#include <kvasir/sdk/error.h>

#include "plugins/storage/tiered/store_folder.h"
#include "plugins/storage/tiered/store_redis.h"

namespace kvasir::tiered {

void Store::name_run(const Hash& run, const std::string& about) {
  std::string why;
  if (backend_->open_run(run, about, why)) {
    run_ = run;
  } else {
    host_.log(KVASIR_LOG_WARN, "the store in " + backend_->where() + " cannot be used (" + why +
                                   "): nothing is kept there or found");
  }
}

std::vector<Memory> Store::find(std::span<const kvasir_block_key> keys) {
  if (!run_) return {};
  std::vector<StoreName> names;
  for (const kvasir_block_key& key : keys) names.push_back(name_of(key));
  std::vector<Memory> out(names.size());
  std::string why;
  out.resize(backend_->read(names, layout_, out, why));
  if (!why.empty() && !std::exchange(bad_told_, true))
    host_.log(KVASIR_LOG_WARN, why + ": its tokens are computed anew; of others this is not said");
  tokens_found_ += out.size() * layout_.block_size * layout_.n_kv_heads;
  return out;
}

std::unique_ptr<StoreBackend> open_backend(const std::string& store, uint64_t limit_bytes,
                                           bool limit_is_set, const sdk::Host& host) {
  if (!is_redis_address(store)) return std::make_unique<StoreFolder>(store, limit_bytes);
  if (limit_is_set)
    sdk::fail_invalid(
        "tiered: store_limit_bytes is of a folder: a Redis server limits itself by its maxmemory, "
        "and `kvasir cache prune` shortens what it has");
  return std::make_unique<StoreRedis>(parse_redis_address(store), host);
}

}  // namespace kvasir::tiered
