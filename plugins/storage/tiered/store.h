// What outlives the process: blocks named by their content, in a folder or on a server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>
#include <kvasir/storage.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/store_backend.h"
#include "plugins/storage/tiered/store_writer.h"

namespace kvasir::tiered {

// keep() and find() are for one thread at a time.
class Store {
 public:
  Store(std::unique_ptr<StoreBackend> backend, const sdk::Host& host)
      : host_(host), backend_(std::move(backend)), writer_(*backend_, host) {}

  const StoreBackend& backend() const { return *backend_; }
  void bind(const kvasir_geometry& geometry, const sdk::KvLayout& layout) {
    layout_ = store_layout(geometry, layout);
    writer_.start();
  }
  // Before it nothing is kept or found.
  void name_run(const Hash& run, const std::string& about);
  bool is_named() const { return run_.has_value(); }

  void keep(const kvasir_block_key& key, Memory memory) {
    writer_.add({name_of(key), std::move(memory)}, layout_);
  }
  void finish() { writer_.finish(); }  // all that was to be kept is written
  // The bytes of blocks, checked, from the first on, up to one that is not there.
  std::vector<Memory> find(std::span<const kvasir_block_key> keys);
  uint64_t tokens_found() const { return tokens_found_; }  // each kv head for itself

 private:
  StoreName name_of(const kvasir_block_key& key) const {
    return {*run_, {key.hash[0], key.hash[1]}, key.block, key.layer};
  }

  const sdk::Host& host_;
  std::unique_ptr<StoreBackend> backend_;
  StoreLayout layout_;
  std::optional<Hash> run_;
  uint64_t tokens_found_ = 0;
  bool bad_told_ = false;
  StoreWriter writer_;  // ends first
};

// What the options `store` and `store_limit_bytes` name; `limit_is_set`: by the user. Throws
// sdk::Error when that cannot be used.
std::unique_ptr<StoreBackend> open_backend(const std::string& store, uint64_t limit_bytes,
                                           bool limit_is_set, const sdk::Host& host);

}  // namespace kvasir::tiered
