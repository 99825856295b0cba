// Calls of a storage; leases are checked as they come back.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {
namespace {

std::string place_of(const kvasir_block_key& key) {
  return "layer " + std::to_string(key.layer) + ", block " + std::to_string(key.block);
}

uint32_t layer_of(const std::vector<kvasir_block_key>& keys) {
  return keys.empty() ? Breadcrumb::kNoLayer : keys[0].layer;
}

// Of elements, and of the scales of quantised groups; see kvasir_kv_format.
uint64_t alignment_of(uint32_t dtype) {
  return dtype == KVASIR_DTYPE_F32 ? 4 : dtype == KVASIR_DTYPE_FP8_E4M3 ? 1 : 2;
}

}  // namespace

Storage::Storage(const OpenPlugin& plugin, const HostServices& services,
                 const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_STORAGE, abi_least::kStorageBytes),
      table_(copy_table<kvasir_storage>()) {
  const kvasir_storage& t = table();
  if (!t.plan || !t.formats || !t.acquire || !t.release || !t.seal || !t.drop) {
    defect("create",
           "its storage has no plan(), formats(), acquire(), release(), seal() or drop()");
  }
}

bool Storage::stable_leases() const { return desc().provides & KVASIR_PROVIDE_STABLE_LEASES; }
bool Storage::has_prefetch() const { return table().prefetch != nullptr; }
bool Storage::fetches() const { return desc().provides & KVASIR_PROVIDE_FETCH; }

kvasir_storage_plan Storage::plan(const kvasir_geometry& geometry) const {
  kvasir_storage_plan plan{};
  plan.struct_size = sizeof(plan);
  control_call("plan",
               [&](kvasir_err* err) { return table().plan(base().self, &geometry, &plan, err); });
  if (plan.block_bytes == 0) defect("plan", "block_bytes is zero");
  return plan;
}

std::vector<kvasir_kv_format> Storage::formats() const {
  constexpr uint32_t kMaxFormats = 256;
  kvasir_kv_format blank{};
  blank.struct_size = sizeof(blank);
  std::vector<kvasir_kv_format> formats(8, blank);
  uint32_t n = 0;
  const auto ask = [&](kvasir_err* err) {
    return table().formats(base().self, formats.data(), static_cast<uint32_t>(formats.size()), &n,
                           err);
  };
  if (control_call("formats", ask, KVASIR_ERR_CAPACITY) == KVASIR_ERR_CAPACITY) {
    if (n <= formats.size() || n > kMaxFormats) {
      defect("formats", "it needs room for " + std::to_string(n) + " formats");
    }
    formats.assign(n, blank);
    control_call("formats", ask);
  }
  if (n == 0 || n > formats.size()) defect("formats", std::to_string(n) + " formats");
  formats.resize(n);
  formats_ = formats;
  for (const kvasir_kv_format& f : formats) {
    const auto is_dtype = [](uint32_t d) {
      return d >= KVASIR_DTYPE_F32 && d <= KVASIR_DTYPE_FP8_E4M3;
    };
    if (!is_dtype(f.dtype_k) || !is_dtype(f.dtype_v)) defect("formats", "an unknown element type");
    if ((f.k_token_stride | f.k_head_stride) % alignment_of(f.dtype_k) != 0 ||
        (f.v_token_stride | f.v_head_stride) % alignment_of(f.dtype_v) != 0)
      defect("formats", "a stride that is not a multiple of its element type's alignment");
    if (f.mem_kind > KVASIR_MEM_DEVICE) defect("formats", "an unknown kind of memory");
    if (f.mem_kind == KVASIR_MEM_DEVICE && !moves_tokens())
      defect("formats",
             "blocks in device memory without write_tokens(), copy_tokens(), save_tokens() and "
             "load_tokens()");
  }
  return formats;
}

kvasir_status Storage::acquire(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                               kvasir_lease* out) {
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given_keys = arguments.keys(keys);
  kvasir_lease* const given_out = arguments.leases({out, keys.size()});
  const auto call = [&](kvasir_err* err) {
    return table().acquire(base().self, given_keys, static_cast<uint32_t>(keys.size()),
                           sizeof(kvasir_block_key), mode, given_out, sizeof(kvasir_lease), err);
  };
  const kvasir_status status = step_call("acquire", nullptr, call, {KVASIR_AGAIN}, layer_of(keys));
  finish("acquire", arguments);
  if (status != KVASIR_OK) return status;
  check_leases("acquire", keys, out);
  if (checked_) check_sums(keys, mode, out);
  return status;
}

std::string Storage::fault_of(const kvasir_block_key& key, const kvasir_lease& lease) const {
  const bool has_data = lease.k && lease.v;
  const bool is_partial = lease.state == KVASIR_LEASE_PARTIAL;
  const bool is_held = lease.state == KVASIR_LEASE_RESIDENT || is_partial;
  const std::string state = "a lease of state " + std::to_string(lease.state);
  if (lease.state > KVASIR_LEASE_PARTIAL) return state;
  if (is_held && !has_data) return state + " without K and V";
  if (is_partial && !key.needed) return state + " for a key that needs the whole block";
  if (!is_held) return "";
  if (lease.kv_head != key.kv_head)
    return "a lease of kv head " + std::to_string(lease.kv_head) + " for a key of " +
           std::to_string(key.kv_head);
  if (lease.format >= formats_.size()) return "";  // who takes the lease sees to it
  const kvasir_kv_format& format = formats_[lease.format];
  const auto is_aligned = [](const void* row, uint32_t dtype) {
    return reinterpret_cast<uintptr_t>(row) % alignment_of(dtype) == 0;
  };
  return is_aligned(lease.k, format.dtype_k) && is_aligned(lease.v, format.dtype_v)
             ? ""
             : "K or V at an address that its element type does not allow";
}

void Storage::check_leases(const char* function, const std::vector<kvasir_block_key>& keys,
                           const kvasir_lease* leases) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string fault = fault_of(keys[i], leases[i]);
    if (fault.empty()) continue;
    std::vector<uint64_t> held;
    for (size_t j = 0; j < keys.size(); ++j)
      if (leases[j].lease) held.push_back(leases[j].lease);
    if (function == std::string_view("acquire")) release(held);
    defect(function, place_of(keys[i]) + ": " + fault);
  }
}

uint64_t Storage::sum_of(const kvasir_lease& lease, const kvasir_block_key& key) const {
  if (lease.format >= formats_.size()) return 0;
  return kvasir::sum_of(lease, key.n_tokens, formats_[lease.format], checked_->shape());
}

// The whole of a sealed block must be what it was then.
void Storage::check_sums(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                         const kvasir_lease* leases) const {
  BlockSums& sums = checked_->checks.sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (mode == KVASIR_ACQUIRE_WRITE) {
      sums.forget(*this, keys[i]);
      sums.forget_at(leases[i].k);
    } else if (leases[i].state == KVASIR_LEASE_RESIDENT) {
      const std::string fault =
          sums.check_lease(*this, keys[i], leases[i], sum_of(leases[i], keys[i]));
      if (!fault.empty()) defect("acquire", fault);
    }
  }
}

void Storage::release(const std::vector<uint64_t>& leases) noexcept {
  for (size_t i = 0; checked_ && i < leases.size(); ++i)
    checked_->checks.sums.release(*this, leases[i]);
  unfailing_call("release", [&] {
    const auto begin = std::chrono::steady_clock::now();
    table().release(base().self, leases.data(), static_cast<uint32_t>(leases.size()));
    stats_.nanos += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
  });
  ++stats_.calls;
}

kvasir_status Storage::seal(const std::vector<kvasir_block_key>& keys, kvasir_lease* leases) {
  const std::vector<kvasir_lease> written(leases, leases + (checked_ ? keys.size() : 0));
  std::vector<uint64_t> sums;  // of what was written
  for (size_t i = 0; checked_ && i < keys.size(); ++i) sums.push_back(sum_of(written[i], keys[i]));
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given_keys = arguments.keys(keys);
  kvasir_lease* const given_leases = arguments.leases({leases, keys.size()});
  const auto call = [&](kvasir_err* err) {
    return table().seal(base().self, given_keys, static_cast<uint32_t>(keys.size()),
                        sizeof(kvasir_block_key), given_leases, sizeof(kvasir_lease), err);
  };
  const kvasir_status status = step_call("seal", nullptr, call, {}, layer_of(keys));
  finish("seal", arguments);
  check_leases("seal", keys, leases);
  for (size_t i = 0; checked_ && i < keys.size(); ++i) {
    const uint64_t sum = sum_of(leases[i], keys[i]);
    if (leases[i].format == written[i].format && sum != 0 && sums[i] != 0 && sum != sums[i])
      defect("seal", place_of(keys[i]) + ": K or V is not what was written");
    checked_->checks.sums.seal(*this, keys[i], leases[i], sum);
  }
  return status;
}

void Storage::drop(const std::vector<kvasir_block_key>& keys, uint32_t mode) {
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given_keys = arguments.keys(keys);
  for (size_t i = 0; checked_ && i < keys.size(); ++i) checked_->checks.sums.forget(*this, keys[i]);
  const auto call = [&](kvasir_err* err) {
    return table().drop(base().self, given_keys, static_cast<uint32_t>(keys.size()),
                        sizeof(kvasir_block_key), mode, err);
  };
  step_call("drop", nullptr, call, {}, layer_of(keys));
  finish("drop", arguments);
}

kvasir_status Storage::prefetch(const std::vector<kvasir_block_key>& keys, uint32_t priority,
                                uint64_t ticket, uint32_t& accepted) {
  require(has_prefetch(), "prefetch");
  const kvasir_io_hint hint{sizeof(kvasir_io_hint), priority};
  accepted = 0;
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given_keys = arguments.keys(keys);
  uint32_t* const given_accepted = arguments.out("accepted", accepted);
  const auto call = [&](kvasir_err* err) {
    return table().prefetch(base().self, given_keys, static_cast<uint32_t>(keys.size()),
                            sizeof(kvasir_block_key), &hint, ticket, given_accepted, err);
  };
  const kvasir_status status = step_call("prefetch", nullptr, call, {KVASIR_AGAIN}, layer_of(keys));
  finish("prefetch", arguments);
  if (accepted > keys.size()) {
    defect("prefetch", "it accepted " + std::to_string(accepted) + " of " +
                           std::to_string(keys.size()) + " blocks");
  }
  return status;
}

void Storage::cancel(uint64_t ticket) {
  if (!table().cancel) return;
  step_call("cancel", nullptr,
            [&](kvasir_err* err) { return table().cancel(base().self, ticket, err); });
}

std::vector<kvasir_tier_count> Storage::count_tiers() const {
  if (!tier_counters_)
    tier_counters_ = static_cast<const kvasir_tier_counters*>(extension(KVASIR_EXT_TIER_COUNTERS));
  const kvasir_tier_counters* const counters = *tier_counters_;
  if (!counters) return {};
  if (!KVASIR_HAS(counters, kvasir_tier_counters, count))
    defect(KVASIR_EXT_TIER_COUNTERS, "it has no count()");
  constexpr uint32_t kMaxTiers = 8;
  std::vector<kvasir_tier_count> tiers(kMaxTiers);
  uint32_t n = 0;
  control_call("count", [&](kvasir_err* err) {
    return counters->count(base().self, tiers.data(), kMaxTiers, sizeof(kvasir_tier_count), &n,
                           err);
  });
  if (n > kMaxTiers) defect("count", std::to_string(n) + " tiers");
  tiers.resize(n);
  for (const kvasir_tier_count& tier : tiers)
    if (!tier.name) defect("count", "a tier without a name");
  return tiers;
}

bool Storage::moves_tokens() const {
  const kvasir_instance* t = &base();
  return KVASIR_HAS(t, kvasir_storage, write_tokens) &&
         KVASIR_HAS(t, kvasir_storage, copy_tokens) && KVASIR_HAS(t, kvasir_storage, save_tokens) &&
         KVASIR_HAS(t, kvasir_storage, load_tokens);
}

void Storage::write_tokens(const std::vector<kvasir_token_span>& spans, const kvasir_view& k,
                           const kvasir_view& v) {
  require(moves_tokens(), "write_tokens");
  check("write_tokens", step_call("write_tokens", nullptr, [&](kvasir_err* err) {
          return table().write_tokens(base().self, spans.data(),
                                      static_cast<uint32_t>(spans.size()),
                                      sizeof(kvasir_token_span), &k, &v, err);
        }));
}

void Storage::copy_tokens(const std::vector<kvasir_token_copy>& copies) {
  require(moves_tokens(), "copy_tokens");
  check("copy_tokens", step_call("copy_tokens", nullptr, [&](kvasir_err* err) {
          return table().copy_tokens(base().self, copies.data(),
                                     static_cast<uint32_t>(copies.size()),
                                     sizeof(kvasir_token_copy), err);
        }));
}

void Storage::save_tokens(std::span<const kvasir_token_span> spans, std::span<std::byte> to) {
  require(moves_tokens(), "save_tokens");
  control_call("save_tokens", [&](kvasir_err* err) {
    return table().save_tokens(base().self, spans.data(), static_cast<uint32_t>(spans.size()),
                               sizeof(kvasir_token_span), to.data(), to.size(), err);
  });
}

void Storage::load_tokens(const kvasir_token_span& span, std::span<const std::byte> from) {
  require(moves_tokens(), "load_tokens");
  control_call("load_tokens", [&](kvasir_err* err) {
    return table().load_tokens(base().self, &span, 1, sizeof(span), from.data(), from.size(), err);
  });
}

// Asked once: the table lives as long as the instance.
bool Storage::has_device_memory() const {
  if (!device_memory_) {
    const auto* t = static_cast<const kvasir_device_memory*>(extension(KVASIR_EXT_DEVICE_MEMORY));
    const bool is_whole =
        t && KVASIR_HAS(t, kvasir_device_memory, zero) && t->alloc && t->free && t->copy;
    device_memory_ = is_whole ? t : nullptr;
  }
  return *device_memory_ != nullptr;
}

const kvasir_device_memory& Storage::device_table() const {
  require(has_device_memory(), KVASIR_EXT_DEVICE_MEMORY);
  return **device_memory_;
}

int32_t Storage::device() const { return device_table().device; }

void* Storage::device_alloc(uint64_t bytes) {
  void* data = nullptr;
  check("alloc", step_call("alloc", nullptr, [&](kvasir_err* err) {
          return device_table().alloc(base().self, bytes, &data, err);
        }));
  if (!data) defect("alloc", "it succeeded without memory");
  return data;
}

void Storage::device_free(void* data) noexcept {
  // It gave the memory, so it has the extension.
  unfailing_call("free", [&] { (*device_memory_)->free(base().self, data); });
}

void Storage::device_copy(const kvasir_view& to, const kvasir_view& from) {
  check("copy", step_call("copy", nullptr, [&](kvasir_err* err) {
          return device_table().copy(base().self, &to, &from, err);
        }));
}

void Storage::device_zero(void* data, uint64_t bytes) {
  check("zero", step_call("zero", nullptr, [&](kvasir_err* err) {
          return device_table().zero(base().self, data, bytes, err);
        }));
}

bool Storage::checks_finite() const {
  return has_device_memory() && KVASIR_HAS(*device_memory_, kvasir_device_memory, all_finite);
}

bool Storage::device_all_finite(const kvasir_view& of) {
  require(checks_finite(), "all_finite");
  uint32_t answer = 0;
  check("all_finite", step_call("all_finite", nullptr, [&](kvasir_err* err) {
          return device_table().all_finite(base().self, &of, &answer, err);
        }));
  if (answer > 1) defect("all_finite", "it answered neither 0 nor 1");
  return answer == 1;
}

std::vector<bool> Storage::device_fetch(const kvasir_view& to, const kvasir_view& from,
                                        const std::vector<kvasir_view>& of) {
  require(checks_finite(), "all_finite");
  std::vector<bool> are_finite;
  if (!KVASIR_HAS(*device_memory_, kvasir_device_memory, fetch)) {
    device_copy(to, from);
    for (const kvasir_view& view : of) are_finite.push_back(device_all_finite(view));
    return are_finite;
  }
  std::vector<uint32_t> answers(of.size(), 0);
  check("fetch", step_call("fetch", nullptr, [&](kvasir_err* err) {
          return device_table().fetch(base().self, &to, &from, of.data(),
                                      static_cast<uint32_t>(of.size()), answers.data(), err);
        }));
  for (const uint32_t answer : answers) {
    if (answer > 1) defect("fetch", "it answered neither 0 nor 1");
    are_finite.push_back(answer == 1);
  }
  return are_finite;
}

// Of calls that have no other answer than done.
void Storage::check(const char* function, kvasir_status status) const {
  if (status != KVASIR_OK) defect(function, "returned status " + std::to_string(status));
}

}  // namespace kvasir
