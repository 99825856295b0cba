// What one call of a plugin is given: as it is, or in validate mode as guarded copies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/plugin/check/guarded_memory.h"
#include "core/plugin/check/plugin_checks.h"
#include "core/plugin/check/process_state.h"
#include "core/plugin/host.h"

namespace kvasir {

// What is known of the plugin that is called: it lives as long as its instance.
struct CheckedPlugin {
  PluginChecks& checks;
  const HostServices& services;
  kvasir_geometry geometry{};      // once it is bound
  std::set<int> descriptors{};     // that it opened
  int64_t allocated = 0;           // bytes by its calls, less what they gave back
  uint64_t declared = UINT64_MAX;  // bytes that it says it keeps at most
  bool told_growth = false;

  // Of the leases that it is given.
  std::span<const kvasir_kv_format> formats() const {
    return {geometry.formats, geometry.n_formats};
  }
  // By malloc() in this process, without what the host keeps for plugins.
  int64_t allocated_now() const;
  BlockShape shape() const { return {geometry.n_kv_heads, geometry.head_dim, geometry.v_dim}; }
};

// Each function returns what to hand over in place of its argument, valid until this goes. A call
// fills in one selection, one attention output or one array of scores at most.
// Numbers in memory that the host does not reach stay where they are. Throws PluginError of the
// storage where a sealed block in a lease is no longer what it was.
class CallArguments {
 public:
  // plugin null: nothing is copied or compared.
  explicit CallArguments(CheckedPlugin* plugin);
  ~CallArguments();
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  // writes_records: it may write to the slab's pages.
  const kvasir_step* step(const kvasir_step& step, bool writes_records = false);
  // query_block: limits.prefill.query_block.
  const kvasir_sel_in* select_in(const kvasir_sel_in& in, const kvasir_step& step);
  kvasir_selection* selection(kvasir_selection& out, const kvasir_step& step);
  const kvasir_update_item* items(std::span<const kvasir_update_item> items);
  const kvasir_mass* mass(const kvasir_mass& mass, const kvasir_step& step);
  const kvasir_score_in* score_in(const kvasir_score_in& in);
  kvasir_score_out* score_out(kvasir_score_out& out, const kvasir_step& step, bool summed);
  const kvasir_attn_in* attention_in(const kvasir_attn_in& in);
  kvasir_attn_out* attention_out(kvasir_attn_out& out);
  const kvasir_attn_mass* attention_mass(const kvasir_attn_mass& out, const kvasir_attn_in& in);
  const kvasir_block_key* keys(std::span<const kvasir_block_key> keys);
  kvasir_lease* leases(std::span<kvasir_lease> leases, const char* name = "leases");
  // A struct or an array that the plugin fills in.
  template <class T>
  T* out(const char* name, T& value) {
    return plugin_ ? static_cast<T*>(memory_.add_output(name, &value, sizeof value)) : &value;
  }

  // Once the call is over, copies back what it wrote. What it did that it must not, or "".
  std::string finish();

 private:
  template <class T>
  const T* input(const char* name, const T* data, uint64_t n) {
    return static_cast<const T*>(memory_.add_input(name, data, n * sizeof(T)));
  }
  template <class T>
  T* output(const char* name, T* data, uint64_t n) {
    return static_cast<T*>(memory_.add_output(name, data, n * sizeof(T)));
  }
  kvasir_view input(const char* name, kvasir_view view);
  kvasir_view output(const char* name, kvasir_view view);
  const kvasir_slab* slab(const kvasir_slab& slab, const kvasir_step& step, bool writes_records);
  void watch_pages(const kvasir_slab& slab, const kvasir_step& step);
  const kvasir_selection* candidates(const kvasir_selection& lists);
  const kvasir_lease* input_leases(const kvasir_lease* leases, uint64_t n, uint32_t n_tokens = 0);
  // K and V of the lease must be the same afterwards.
  void watch(const kvasir_lease& lease, uint32_t n_tokens);

  struct Watched {
    kvasir_lease lease;
    uint32_t n_tokens;
    uint64_t sum;
  };
  // A struct that the plugin fills in, with pointers to copies.
  template <class T>
  struct Filled {
    T* original;
    T copy;
  };

  CheckedPlugin* const plugin_;
  GuardedMemory memory_;
  struct WatchedPage {
    const void* data;
    uint64_t bytes, sum;
  };
  std::vector<Watched> watched_;
  std::vector<WatchedPage> watched_pages_;
  std::optional<Filled<kvasir_selection>> selection_;
  std::optional<Filled<kvasir_attn_out>> attention_out_;
  std::optional<kvasir_score_out> score_out_;
  std::optional<ProcessState> before_;
};

}  // namespace kvasir
