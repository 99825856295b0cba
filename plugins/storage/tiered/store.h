// What outlives the process: blocks named by their content, in a folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>
#include <kvasir/storage.h>

#include <optional>
#include <string>
#include <utility>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/store_folder.h"
#include "plugins/storage/tiered/store_writer.h"

namespace kvasir::tiered {

// keep() and find() are for one thread at a time.
class Store {
 public:
  // Throws sdk::Error(KVASIR_ERR_IO).
  Store(std::string path, uint64_t limit_bytes, const sdk::Host& host)
      : host_(host), folder_(std::move(path), limit_bytes), writer_(folder_, host) {}

  const StoreFolder& folder() const { return folder_; }
  void bind(const kvasir_geometry& geometry, const sdk::KvLayout& layout) {
    layout_ = store_layout(geometry, layout);
  }
  // Before it nothing is kept or found.
  void name_run(const Hash& run, const std::string& about);
  bool is_named() const { return run_.has_value(); }

  void keep(const kvasir_block_key& key, Memory memory) {
    writer_.add({name_of(key), std::move(memory)}, layout_);
  }
  void finish() { writer_.finish(); }  // all that was to be kept is written
  // The block's bytes, checked; null when it is not there.
  Memory find(const kvasir_block_key& key);
  uint64_t tokens_found() const { return tokens_found_; }  // each kv head for itself

 private:
  StoreName name_of(const kvasir_block_key& key) const {
    return {*run_, {key.hash[0], key.hash[1]}, key.block, key.layer};
  }

  const sdk::Host& host_;
  StoreFolder folder_;
  StoreLayout layout_;
  std::optional<Hash> run_;
  uint64_t tokens_found_ = 0;
  bool bad_told_ = false;
  StoreWriter writer_;  // ends first
};

}  // namespace kvasir::tiered
