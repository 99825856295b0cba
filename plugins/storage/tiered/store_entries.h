// Records of a store by name, size and last use: what a folder and a server count and prune alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/store.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugins/storage/tiered/store_record.h"

namespace kvasir::tiered {

std::string hex(const Hash& hash);  // 32 digits
std::optional<Hash> hash_of(const std::string& text);
// NAME-BLOCK-LAYER: what a record is called within its run.
std::string record_text(const StoreName& name);
// A name that record_text() makes, or none.
std::optional<StoreName> record_name(const Hash& run, const std::string& text);
// What people are told: control characters are blanks, and it ends somewhere.
std::string printable(std::string text, size_t most);

struct StoreEntry {
  std::string place;  // a path, or a key
  StoreName name;
  uint64_t bytes = 0;
  int64_t used = 0;  // seconds since 1970
};

bool is_of_run(const kvasir_store_filter& filter, const Hash& run);
// Sums by run, in the order of their hashes. Both are asked once per run, the second with one of
// its records: the text for people, and the tokens of a block, 0 when unknown.
std::vector<kvasir_store_run> runs_of(const std::vector<StoreEntry>& entries,
                                      const std::function<std::string(const Hash&)>& about,
                                      const std::function<uint32_t(const StoreEntry&)>& block_size);
// Asks `remove` for the records that go by `filter`, those used longest ago first, and of one
// prompt's the last blocks first, since those behind a gap are of no use. It returns whether the
// record was removed, and sets `gone` when somebody else did so.
kvasir_store_result prune(std::vector<StoreEntry> entries, const kvasir_store_filter& filter,
                          const std::function<bool(const StoreEntry&, bool& gone)>& remove);

}  // namespace kvasir::tiered
