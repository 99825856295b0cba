// Storage in tiers: the blocks used last stay in main memory, the others lie in a file, or in up to
// three of which each takes what the one before has no space for, and come back when a step asks
// for them, or when a selector foresees that it will: whole, or the tokens that are needed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/block_heat.h>
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/store.h>
#include <kvasir/sdk/tier_counters.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/storage/tiered/blocks.h"
#include "plugins/storage/tiered/options.h"
#include "plugins/storage/tiered/store.h"
#include "plugins/storage/tiered/transfers.h"

namespace kvasir::tiered {

// Of full blocks that are not in the file yet.
inline constexpr uint64_t kMostUnsavedBytes = uint64_t{8} << 20;

class Tiered {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_STORAGE,
                     .id = "kvasir.tiered",
                     .version = "0.1.0",
                     .name = "Tiered",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the blocks used last in memory, the others in files.",
                     .options = kOptions,
                     .caps = KVASIR_CAP_OWN_THREADS,
                     .provides = KVASIR_PROVIDE_FETCH,
                     .dtypes = sdk::kElementTypes});

  Tiered(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        cached_blocks_(options.u32("cached_blocks")),
        reads_ahead_(options.boolean("read_ahead")),
        file_options_(options),
        n_files_(static_cast<uint32_t>(file_places(options).size())),
        store_(store_of(options)),
        blocks_(host, options, store_ ? &*store_ : nullptr),
        transfers_(blocks_, completion_of(host)) {}

  ~Tiered() { blocks_.tell_use(); }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    out.n_tiers = 1 + n_files_;
    out.block_bytes = blocks_.layout(geometry).block_bytes();
    const uint64_t layer_blocks = sdk::blocks_per_sequence(geometry) * geometry.max_sequences;
    for (uint32_t layer = 0; layer < geometry.n_layers; ++layer) {
      const uint64_t n = blocks_.keeps_all(geometry, layer) ? layer_blocks : cached_blocks_;
      out.resident_bytes += std::max<uint64_t>(out.block_bytes * n, 1);
    }
    // What is on its way, what is kept for blocks to come, and the tables.
    out.overhead_bytes = file_options_.n_buffers() * file_options_.read_bytes + kMostUnsavedBytes;
    if (store_) out.overhead_bytes += StoreWriter::kMostBytes;
    out.overhead_bytes += Blocks::spare_bytes(layer_blocks * out.block_bytes);
    out.overhead_bytes += layer_blocks * geometry.n_layers * Blocks::table_bytes_per_block();
  }

  void bind(const kvasir_geometry& geometry) {
    blocks_.bind(geometry);
    // Here, where its thread inherits no single core.
    transfers_.start(make_file_io(blocks_.files(), file_options_, blocks_.piece_bytes(), host_),
                     n_files_);
    if (store_) store_->bind(geometry, blocks_.layout());
  }

  std::vector<kvasir_tier_count> tiers() {
    std::vector<kvasir_tier_count> out = blocks_.tiers();
    for (uint32_t file = 0; file < n_files_; ++file) {
      const FlowCounts flow = transfers_.flow(file);
      out[1 + file].n_reads = flow.n_reads;
      out[1 + file].busy_nanos = flow.busy_nanos;
      out[1 + file].read_nanos = flow.read_nanos;
    }
    if (store_)
      out.push_back({"store", store_->backend().bytes_read(), store_->backend().bytes_written(),
                     store_->tokens_found(), 0, 0, 0});
    return out;
  }

  const void* get_extension(const char* id) const {
    if (std::string_view(id) == KVASIR_EXT_STORE)
      return store_ ? sdk::store_table<Tiered>() : nullptr;
    if (std::string_view(id) == KVASIR_EXT_BLOCK_HEAT) return sdk::block_heat_table<Tiered>();
    return sdk::tier_counters_if_asked<Tiered>(id);
  }

  // kvasir.block-heat/1
  uint32_t wants_heat() const { return blocks_.wants_heat(); }
  void heat(const sdk::BlockKeys& keys, std::span<const float> values) {
    blocks_.heat(keys, values);
  }

  // kvasir.store/1, which is offered with a store only.
  void name_run(const Hash& run, const std::string& about) { store_->name_run(run, about); }
  void restore(const sdk::BlockKeys& keys, const sdk::Leases& out) {
    for (uint64_t i = 0; i < keys.size(); ++i)
      out[i] = blocks_.no_lease(keys[i], KVASIR_LEASE_FAILED);
    try {
      uint64_t n = 0;
      while (n < keys.size() && (lease_held(keys[n], out[n]) ? ++n : lease_stored(keys, n, out)))
        continue;
    } catch (const std::exception&) {  // no memory, or a file that cannot be read: the others FAIL
    }
  }
  std::vector<kvasir_store_run> list() const { return store_->backend().list(); }
  kvasir_store_result verify(const kvasir_store_filter& filter, const sdk::BadRecord& bad) const {
    return store_->backend().verify(filter, bad);
  }
  kvasir_store_result prune(const kvasir_store_filter& filter) const {
    return store_->backend().prune(filter);
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("tiered", blocks_.layout().format, out, capacity, n_formats);
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    if (mode != KVASIR_ACQUIRE_FETCH) return blocks_.acquire(keys, mode, out);
    const std::vector<uint32_t> tier = fetch(keys);
    blocks_.acquire(keys, KVASIR_ACQUIRE_READ, out);
    for (uint64_t i = 0; i < tier.size(); ++i) out[i].tier = tier[i];
  }

  void release(std::span<const uint64_t> leases) { blocks_.release(leases); }

  // A full block does not change any more: it goes to the file, and may then leave memory.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    seal_at_once(keys, leases);
    wait_for_saves();
  }

  // For a tier above this one. acquire() with FETCH of what no step has asked for yet; seal()
  // without waiting for the file, and that.
  void acquire_ahead(const sdk::BlockKeys& keys, const sdk::Leases& out) {
    transfers_.load_now(blocks_.loads_of(keys));
    blocks_.acquire(keys, KVASIR_ACQUIRE_READ, out);
  }
  void seal_at_once(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    Blocks::Kept kept;
    transfers_.save(blocks_.seal(keys, leases, kept));
    for (auto& [key, memory] : kept) store_->keep(key, std::move(memory));
  }
  void wait_for_saves() {
    transfers_.wait_for_saves(kMostUnsavedBytes / blocks_.layout().block_bytes());
  }

  // UNREF and FORGET both free the bytes of all tiers: no block outlives its holder.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) { blocks_.drop(keys, mode); }

  void prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint& hint, uint64_t ticket,
                uint32_t& accepted) {
    std::vector<Load> loads = blocks_.loads_of(keys);
    if (loads.empty() || (hint.priority == 0 && !reads_ahead_)) return;
    const auto n = static_cast<uint32_t>(loads.size());
    transfers_.load(ticket, std::move(loads), hint.priority != 0);
    accepted = n;
  }
  void cancel(uint64_t ticket) { transfers_.cancel(ticket); }
  void drain(uint64_t deadline_ms) { transfers_.drain(deadline_ms); }

 private:
  std::optional<Store> store_of(const sdk::Options& options) const {
    if (!options.delivered("store")) return std::nullopt;
    return std::optional<Store>(
        std::in_place,
        open_backend(options.path("store"), options.bytes("store_limit_bytes"),
                     options.set_by_user("store_limit_bytes"), host_),
        host_);
  }
  static const kvasir_completion* completion_of(const sdk::Host& host) {
    if (host.completion()) return host.completion();
    throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                     std::string("tiered: the host does not offer ") + KVASIR_EXT_COMPLETION);
  }

  // Brings in what `keys` need and waits for it. Returns the tier of each key before that.
  std::vector<uint32_t> fetch(const sdk::BlockKeys& keys) {
    std::vector<uint32_t> tier;
    std::vector<Load> loads = blocks_.missing(keys, tier);
    if (!loads.empty()) transfers_.load_now(std::move(loads));
    return tier;
  }

  // Of a block that this process has. False, and no lease, when it has not.
  bool lease_held(kvasir_block_key key, kvasir_lease& out) {
    if (key.handle != 0 || key.kv_head != KVASIR_ALL_HEADS)
      sdk::fail_invalid(blocks_.where("restore", key) + "blocks of all heads, without a handle");
    if (!blocks_.hold(key)) return false;
    try {
      fetch(sdk::BlockKeys(&key, 1, sizeof key));
    } catch (...) {
      blocks_.let_go(key);
      throw;
    }
    return blocks_.lease_held(key, out);
  }
  // From keys[n] on, up to one that this process has: asked for together. Counts n up; 0 when the
  // store lacks one of them.
  uint64_t lease_stored(const sdk::BlockKeys& keys, uint64_t& n, const sdk::Leases& out) {
    std::vector<kvasir_block_key> wanted = {keys[n]};
    while (n + wanted.size() < keys.size() && !blocks_.is_named(keys[n + wanted.size()]))
      wanted.push_back(keys[n + wanted.size()]);
    std::vector<Memory> found = store_->find(wanted);
    std::vector<uint64_t> handles;
    for (Memory& memory : found)
      handles.push_back(blocks_.add(keys[n], std::move(memory), out[n])), ++n;
    transfers_.save(handles);
    wait_for_saves();
    return found.size() == wanted.size() ? n : 0;
  }

  sdk::Host host_;
  uint32_t cached_blocks_;
  bool reads_ahead_;
  FileOptions file_options_;
  uint32_t n_files_;
  std::optional<Store> store_;
  Blocks blocks_;
  Transfers transfers_;  // ends first: its thread uses the blocks
};

}  // namespace kvasir::tiered
