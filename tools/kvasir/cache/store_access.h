// The storage that `kvasir cache` asks, and what its flags mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/store.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/plugin/pipeline.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

// The options of a strategy whose storage is `tiered` with the store at `place`, a folder or an
// address; empty: as they are.
Options at_store(const Options& options, const std::string& place);

struct StoreOptions {
  Options strategy;
  std::string place;  // storage.store of `tiered`; empty: the strategy's storage says where
  std::string model;  // --model
};

class StoreAccess {
 public:
  // Error when there is no such folder, or the strategy's storage keeps nothing.
  explicit StoreAccess(const StoreOptions& options);
  const Storage& storage() const { return *pipeline_.storage; }
  // Those that --model names: Error when it names none.
  std::vector<kvasir_store_run> runs() const;

 private:
  std::string model_;
  PluginHost host_;
  Pipeline pipeline_;
};

std::string run_text(const kvasir_store_run& run);  // 32 digits
// "500M", "10G" (x 1024^n), or a size as options of plugins have it; "30m", "12h", "7d", or a
// number of seconds. Error naming `flag`.
uint64_t size_of_flag(const std::string& text, const std::string& flag);
uint64_t seconds_of_flag(const std::string& text, const std::string& flag);

}  // namespace kvasir::tool
