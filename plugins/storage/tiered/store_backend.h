// Where blocks outlive the process: a folder, or a server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/store.h>
#include <kvasir/sdk/store.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/store_record.h"

namespace kvasir::tiered {

struct StoreBlock {
  StoreName name;
  Memory memory;
};

// read() is for one thread at a time, write() for another one.
class StoreBackend {
 public:
  virtual ~StoreBackend() = default;

  virtual std::string where() const = 0;  // for messages; holds no password
  // Blocks of this run are to be written and read. False with a reason in `why`.
  virtual bool open_run(const Hash& run, const std::string& about, std::string& why) = 0;
  // Sets to[i] to the bytes of names[i], checked, from the first on, up to one that is not there or
  // not whole. Returns how many. `why`: what is wrong with that one; empty where it is not there. A
  // hit counts as a use. `to` is as long as `names`.
  virtual size_t read(std::span<const StoreName> names, const StoreLayout& layout,
                      std::span<Memory> to, std::string& why) = 0;
  // Keeps what is there already, which counts as a use. False with a reason in `why` when some were
  // not written and nobody was told.
  virtual bool write(std::span<const StoreBlock> blocks, const StoreLayout& layout,
                     std::string& why) = 0;
  // How long a run may wait for what it stored before to be written; none: until it is.
  virtual std::optional<std::chrono::milliseconds> patience() const = 0;

  // See kvasir_store. Throw sdk::Error(KVASIR_ERR_IO) when nobody answers.
  virtual std::vector<kvasir_store_run> list() const = 0;
  virtual kvasir_store_result verify(const kvasir_store_filter& filter,
                                     const sdk::BadRecord& bad) const = 0;
  virtual kvasir_store_result prune(const kvasir_store_filter& filter) const = 0;

  virtual uint64_t bytes_read() const = 0;
  virtual uint64_t bytes_written() const = 0;
};

}  // namespace kvasir::tiered
