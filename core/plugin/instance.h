// Created plugins as C++ objects: the one place of the core where the C tables are called. Counts
// crossings, times them, turns failures into PluginError.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/block_heat.h>
#include <kvasir/ext/draft/device_lists.h>
#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/ext/draft/state.h>
#include <kvasir/ext/draft/store.h>
#include <kvasir/ext/draft/stream.h>
#include <kvasir/ext/draft/tier_counters.h>
#include <kvasir/kvasir.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/plugin/registry.h"

namespace kvasir {

// Names plugin, function, layer, sequence, each once. kInternal, except where the plugin says that
// an option or the model does not suit it (kInput) or that the machine lacks something (kResource).
class PluginError : public Error {
 public:
  // build: version and file of the plugin, where they are known. place: "layer 3, sequence 1: ", or
  // "".
  PluginError(std::string plugin, std::string function, kvasir_status status,
              const std::string& text, ErrorKind kind = ErrorKind::kInternal,
              const std::string& build = "", const std::string& place = "");
  const std::string& plugin() const { return plugin_; }  // id
  const std::string& function() const { return function_; }
  kvasir_status status() const { return status_; }
  // Without the plugin, for lines that begin with it: "select: layer 3, sequence 1: …".
  std::string text() const { return function_ + ": " + place_ + reason_; }
  // Also without what else the line says.
  const std::string& reason() const { return reason_; }

 private:
  std::string plugin_, function_, place_, reason_;
  kvasir_status status_;
};

// What limits() said, one value per line, checked. Flags and numbers as the stages of a step read
// them; the ABI groups them by ability (kvasir/selector.h).
enum SelectorFlag : uint32_t {
  KVASIR_LIMIT_OBSERVE_WRITES_SLAB = 1,  // KVASIR_LAYOUT_OBSERVE_WRITES
  KVASIR_LIMIT_WANT_PROMPT_END = 2,      // KVASIR_LAYOUT_WANT_PROMPT_END
  KVASIR_LIMIT_PREFILL_SELECT = 4,       // prefill.slice_tokens is not 0
  KVASIR_LIMIT_ZERO_UNITS = 8,           // max_units = 0 says none, not "no limit"
  KVASIR_LIMIT_BEST_SCORES = 16,         // KVASIR_LIMITS_BEST_SCORES
};
struct SelectorLimits {
  uint32_t unit = 0, scope = 0;
  uint32_t flags = 0;      // SelectorFlag set
  uint64_t max_units = 0;  // 0 = no limit, but see KVASIR_LIMIT_ZERO_UNITS
  uint64_t dense_below_tokens = 0;
  uint32_t plan_at = 0, plan_every_tokens = 0, action = 0;
  uint32_t speculate_ahead = 0;
  uint32_t mass_at = 0, mass_level = 0, mass_reduce = 0, mass_part = 0, mass_last_queries = 0;
  uint32_t prefill_last_queries = 0;
  uint32_t prefill_slice_tokens = 0;  // 0 = one slice per chunk
  uint32_t query_block = 0, dense_last_queries = 0;
  uint32_t pos_mode = 0, pos_const = 0;
  uint64_t expected_units = 0, state_bytes = 0, state_peak_bytes = 0;
};
// Likewise what layout() said.
struct RecordLayout {
  uint32_t flags = 0;  // KVASIR_LAYOUT_*
  uint64_t record_bytes = 0, open_bytes = 0, format = 0;
  uint32_t page_bytes = 0;  // of a kv head, beside the records of a page
  uint32_t mass_at = 0, mass_part = 0, mass_last_queries = 0;
  uint32_t refresh_tokens = 0;
  uint64_t state_bytes = 0, state_peak_bytes = 0;
  uint32_t mem_kind = KVASIR_MEM_HOST;
};

struct Breadcrumb;
struct CheckedPlugin;
class CallArguments;

struct CallStats {
  uint64_t calls = 0;  // crossings of the plugin boundary in [step] functions
  uint64_t nanos = 0;  // inside them
};

// Every call: OK is returned, and what status.h lets the function answer besides; anything else
// throws PluginError. Calling an absent optional slot is a defect (check has_*()). Calls of one
// instance come from one thread at a time.
class Instance {
 public:
  Instance(const OpenPlugin& plugin, const HostServices& services, const ResolvedOptions& options,
           uint32_t expected_kind, size_t min_table_bytes);
  virtual ~Instance();  // drain (2 s) and destroy
  Instance(const Instance&) = delete;

  const kvasir_desc& desc() const { return *plugin_.desc; }
  std::string id() const { return plugin_.desc->id; }
  std::string version() const { return plugin_.desc->version; }
  const std::string& file() const { return plugin_.path; }
  // Whether it takes inputs, leased K and V and records in memory of this kind; where it fills
  // results. Who takes HOST takes PINNED.
  // Of its code's file; empty where that was linked without one.
  std::string build_id() const;
  bool reads(uint32_t mem_kind) const;
  bool writes(uint32_t mem_kind) const;
  PluginChecks* checks() const { return services_.checks(); }  // null: no validate mode
  const CallStats& stats() const { return stats_; }
  void reset_stats() { stats_ = {}; }
  const void* extension(const char* id) const;

  void validate(const kvasir_geometry& geometry) const;
  void bind(const kvasir_geometry& geometry);
  bool is_bound() const { return is_bound_; }
  void seq_open(uint64_t seq);
  void seq_fork(uint64_t parent, uint64_t child);
  kvasir_status seq_truncate(uint64_t seq, uint32_t kv_len);  // OK or REBUILD
  void seq_close(uint64_t seq) noexcept;
  // What it keeps of a sequence, through kvasir.state/1. Error(kInput) when it keeps something and
  // has no such extension. load: the sequence is open and empty.
  bool keeps_sequences() const;
  // kvasir.stream-user/1; without it set_stream() may not be called. 0: takes it back.
  bool uses_streams() const;
  void set_stream(kvasir_stream_handle stream) const;
  std::vector<std::byte> save_state(uint64_t seq) const;
  void load_state(uint64_t seq, std::span<const std::byte> bytes);

 protected:
  const kvasir_instance& base() const { return *instance_; }
  // Runs fn(err) as a counted step call named `function`; defined in call.h, as are the
  // other two.
  template <class Fn>
  kvasir_status step_call(const char* function, const kvasir_step* step, Fn&& fn,
                          std::initializer_list<kvasir_status> accepted = {},
                          uint32_t layer = UINT32_MAX);
  // Runs fn(err) outside a step; anything but OK and `accepted` throws.
  template <class Fn>
  kvasir_status control_call(const char* function, Fn&& fn,
                             kvasir_status accepted = KVASIR_OK) const;
  // Runs fn() outside a step; its result is the function's.
  template <class Fn>
  auto unfailing_call(const char* function, Fn&& fn) const;
  // Once a call is over: takes over what it wrote to copies of its arguments. Throws a defect where
  // it did what it must not.
  void finish(const char* function, CallArguments& arguments) const;
  [[noreturn]] void fail(const char* function, kvasir_status status, const std::string& text,
                         const kvasir_step* step = nullptr, uint32_t layer = UINT32_MAX) const;
  // The instance answered something the ABI does not allow.
  [[noreturn]] void defect(const char* function, const std::string& what) const;
  void require(bool slot, const char* function) const;  // an optional slot that is called is there
  // The plugin's table of this kind; slots beyond its struct_size are null. Read once: a table does
  // not change.
  template <class Table>
  Table copy_table() const {
    Table table{};
    std::memcpy(&table, instance_, std::min<size_t>(sizeof table, instance_->struct_size));
    return table;
  }
  RecordLayout checked_layout(const kvasir_layout& layout, uint32_t kind) const;

 private:
  const kvasir_state& state_table() const;
  class ThreadGuard;
  // The function left parts of the thread's state changed, which are as before by now.
  void tell_restored(const char* function, uint32_t parts) const noexcept;
  void tell_leftovers() const noexcept;  // what destroy() should have given back
  void create(const HostServices& services, const ResolvedOptions& options);
  void check_table(uint32_t expected_kind, size_t min_table_bytes);

 protected:
  OpenPlugin plugin_;
  const char *crumb_id_, *crumb_path_;  // of kept_text()
  const HostServices& services_;
  const std::unique_ptr<CheckedPlugin> checked_;  // in validate mode
  kvasir_instance* instance_ = nullptr;
  bool is_bound_ = false;
  CallStats stats_;
};

class Selector : public Instance {
 public:
  Selector(const OpenPlugin&, const HostServices&, const ResolvedOptions&);
  const SelectorLimits& limits() const { return limits_; }  // after read_limits()
  bool gives_weights() const {
    return desc().needs & (KVASIR_NEED_LOG_WEIGHT | KVASIR_NEED_HEAD_LOG_WEIGHT);
  }
  const RecordLayout& layout() const { return layout_; }  // zeros when it has no slab
  // limits() and layout(), after bind; checks them (unit, scope, enums). dense_below_tokens becomes
  // at least what is given.
  void read_limits(uint64_t dense_below_tokens = 0);
  bool has_update() const;
  bool has_prefill() const;
  bool has_speculate() const;
  bool has_select() const;
  bool has_observe() const;
  bool has_evict_plan() const;
  kvasir_status update(const kvasir_step& step, const std::vector<kvasir_update_item>& items);
  kvasir_status prefill(const kvasir_step& step, const kvasir_sel_in& in);
  kvasir_status speculate(const kvasir_step& step, uint32_t target, const kvasir_sel_in& in,
                          kvasir_selection& out);
  kvasir_status select(const kvasir_step& step, const kvasir_sel_in& in, kvasir_selection& out);
  kvasir_status observe(const kvasir_step& step, const kvasir_mass& mass);
  kvasir_status evict_plan(const kvasir_step& step, kvasir_selection& out);
  // kvasir.device-lists/1; without it select_there() may not be called.
  bool leaves_lists() const;
  kvasir_status select_there(const kvasir_step& step, const kvasir_sel_in& in,
                             kvasir_selection& out, const kvasir_view& index);

 private:
  const kvasir_selector& table() const { return table_; }
  void check_limits(const kvasir_sel_limits& limits) const;
  void check_limits_against_slots(const kvasir_sel_limits& limits) const;
  kvasir_selector table_;
  mutable std::optional<const kvasir_device_lists*> device_lists_;
  SelectorLimits limits_;
  RecordLayout layout_;
};

class Representative : public Instance {
 public:
  Representative(const OpenPlugin&, const HostServices&, const ResolvedOptions&);
  const RecordLayout& layout() const { return layout_; }
  void read_layout();
  bool sums_scores() const;  // score() knows KVASIR_SCORE_SUMMED
  kvasir_status update(const kvasir_step& step, const std::vector<kvasir_update_item>& items);
  kvasir_status score(const kvasir_step& step, const kvasir_score_in& in, kvasir_score_out& out);

 private:
  const kvasir_representative& table() const { return table_; }
  kvasir_representative table_;
  RecordLayout layout_;
};

class Storage : public Instance {
 public:
  Storage(const OpenPlugin&, const HostServices&, const ResolvedOptions&);
  kvasir_storage_plan plan(const kvasir_geometry& geometry) const;
  std::vector<kvasir_kv_format> formats() const;  // after bind
  bool stable_leases() const;
  bool has_prefetch() const;
  bool fetches() const;  // acquire() knows KVASIR_ACQUIRE_FETCH
  kvasir_status acquire(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                        kvasir_lease* out);
  void release(const std::vector<uint64_t>& leases) noexcept;
  kvasir_status seal(const std::vector<kvasir_block_key>& keys, kvasir_lease* leases);
  void drop(const std::vector<kvasir_block_key>& keys, uint32_t mode);
  kvasir_status prefetch(const std::vector<kvasir_block_key>& keys, uint32_t priority,
                         uint64_t ticket, uint32_t& accepted);
  void cancel(uint64_t ticket);
  // What it moved since bind, by tier, fastest first; empty when it does not count. The names are
  // the plugin's, for as long as it lives.
  std::vector<kvasir_tier_count> count_tiers() const;

  // kvasir.store/1; without it the others may not be called. See kvasir/ext/draft/store.h.
  bool has_store() const;
  void name_run(const std::array<uint64_t, 2>& run, const std::string& about);
  void restore(const std::vector<kvasir_block_key>& keys, kvasir_lease* out);
  std::vector<kvasir_store_run> list_store() const;
  using BadRecord = std::function<void(const std::string& name, const std::string& why)>;
  kvasir_store_result verify_store(const kvasir_store_filter& filter, const BadRecord& bad) const;
  kvasir_store_result prune_store(const kvasir_store_filter& filter) const;

  // kvasir.block-heat/1: the KVASIR_HEAT_* that it orders blocks by, KVASIR_HEAT_NONE without it;
  // and telling it, values [keys].
  uint32_t heat_wanted() const;
  void heat(const std::vector<kvasir_block_key>& keys, const std::vector<float>& values);

  // Of blocks in memory that the host does not touch; k [tokens][n_kv_heads][head_dim], v likewise.
  void write_tokens(const std::vector<kvasir_token_span>& spans, const kvasir_view& k,
                    const kvasir_view& v);
  void copy_tokens(const std::vector<kvasir_token_copy>& copies);
  void save_tokens(std::span<const kvasir_token_span> spans, std::span<std::byte> to);
  void load_tokens(const kvasir_token_span& span, std::span<const std::byte> from);
  // kvasir.device-memory/1; without it the others may not be called.
  bool has_device_memory() const;
  int32_t device() const;
  void* device_alloc(uint64_t bytes);
  void device_free(void* data) noexcept;
  void device_copy(const kvasir_view& to, const kvasir_view& from);
  void device_zero(void* data, uint64_t bytes);
  bool checks_finite() const;  // it has all_finite(), an optional slot
  // kvasir.stream/1, of which create() alone is used; it gives a stream that lives as long as this.
  bool has_streams() const;
  kvasir_stream_handle make_stream() const;
  bool device_all_finite(const kvasir_view& of);
  // copy() and all_finite() of each, with one wait where it can.
  std::vector<bool> device_fetch(const kvasir_view& to, const kvasir_view& from,
                                 const std::vector<kvasir_view>& of);

 private:
  const kvasir_storage& table() const { return table_; }
  std::string fault_of(const kvasir_block_key& key, const kvasir_lease& lease) const;
  // Releases what acquire() leased before it throws.
  void check_leases(const char* function, const std::vector<kvasir_block_key>& keys,
                    const kvasir_lease* leases);
  // In validate mode.
  uint64_t sum_of(const kvasir_lease& lease, const kvasir_block_key& key) const;
  void check_sums(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                  const kvasir_lease* leases) const;
  const kvasir_device_memory& device_table() const;
  const kvasir_store& store_table() const;
  bool moves_tokens() const;
  void check(const char* function, kvasir_status status) const;
  kvasir_storage table_;
  mutable std::vector<kvasir_kv_format> formats_;  // what formats() said
  mutable std::optional<const kvasir_device_memory*> device_memory_;
  mutable std::optional<const kvasir_tier_counters*> tier_counters_;
  mutable std::optional<uint32_t> heat_wanted_;
  mutable const kvasir_block_heat* heat_table_ = nullptr;  // where heat is wanted
};

class Attention : public Instance {
 public:
  Attention(const OpenPlugin&, const HostServices&, const ResolvedOptions&);
  kvasir_attn_plan plan(uint32_t max_queries, uint64_t max_keys);
  bool has_mass() const;
  void run(const kvasir_step& step, const kvasir_attn_in& in, kvasir_attn_out& out);
  void mass(const kvasir_step& step, const kvasir_attn_in& in, const kvasir_attn_mass& out);
  // kvasir.device-list-reader/1; without it the others may not be called.
  bool reads_lists() const;
  uint64_t kept_bytes(uint64_t n_blocks) const;
  void run_with_lists(const kvasir_step& step, const kvasir_attn_in& in,
                      const kvasir_attn_lists& lists, kvasir_attn_out& out);
  void forget(uint64_t seq) const noexcept;

 private:
  const kvasir_attention& table() const { return table_; }
  kvasir_attention table_;
  mutable std::optional<const kvasir_device_list_reader*> list_reader_;
};

}  // namespace kvasir
