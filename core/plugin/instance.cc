// What all kinds share: create, check the table, sequences, drain, destroy.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/instance.h"

#include <cstring>
#include <optional>

#include "core/platform/affinity.h"
#include "core/platform/build_id.h"
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {
namespace {

constexpr uint64_t kDrainMilliseconds = 2000;
// What a plugin may keep beside the state it declares, and after its end: caches of libraries.
constexpr uint64_t kUndeclaredBytes = uint64_t{16} << 20;
constexpr int64_t kLeftBytes = 1 << 20;

// Whose fault a refusal is depends on when it comes: before the run it is the configuration's.
ErrorKind kind_of(const std::string& function, kvasir_status status) {
  const bool is_setup = function == "create" || function == "validate" || function == "bind" ||
                        function == "plan" || function == "limits" || function == "layout";
  if (status == KVASIR_ERR_OUT_OF_MEMORY) return ErrorKind::kResource;
  if (is_setup && status == KVASIR_ERR_IO) return ErrorKind::kResource;
  if (is_setup && (status == KVASIR_ERR_INVALID || status == KVASIR_ERR_UNSUPPORTED)) {
    return ErrorKind::kInput;
  }
  return ErrorKind::kInternal;
}

// A text that was made from another error has its status already.
std::string with_status(const std::string& text, kvasir_status status) {
  return text.ends_with(']') ? text : text + " [" + status_name(status) + "]";
}

bool in_mask(uint32_t mask, uint32_t mem_kind) {
  if (mask == 0) mask = KVASIR_MEM_BIT(KVASIR_MEM_HOST);
  const uint32_t host =
      mask & KVASIR_MEM_BIT(KVASIR_MEM_HOST) ? KVASIR_MEM_BIT(KVASIR_MEM_PINNED) : 0;
  return mem_kind < 32 && (mask | host) & KVASIR_MEM_BIT(mem_kind);
}

}  // namespace

PluginError::PluginError(std::string plugin, std::string function, kvasir_status status,
                         const std::string& text, ErrorKind kind, const std::string& build,
                         const std::string& place)
    : Error(kind, "plugin " + plugin + build + ": " + function + ": " + place +
                      with_status(text, status)),
      plugin_(std::move(plugin)),
      function_(std::move(function)),
      place_(place),
      reason_(with_status(text, status)),
      status_(status) {}

Instance::Instance(const OpenPlugin& plugin, const HostServices& services,
                   const ResolvedOptions& options, uint32_t expected_kind, size_t min_table_bytes)
    : plugin_(plugin),
      crumb_id_(kept_text(plugin.desc->id)),
      crumb_path_(kept_text(plugin.path)),
      services_(services),
      checked_(services.checks() ? new CheckedPlugin{*services.checks(), services} : nullptr) {
  create(services, options);
  check_table(expected_kind, min_table_bytes);
}

void Instance::create(const HostServices& services, const ResolvedOptions& options) {
  const auto& values = options.values();
  control_call("create", [&](kvasir_err* err) {
    return plugin_.table->create(plugin_.index, services.host(), values.data(),
                                 static_cast<uint32_t>(values.size()), sizeof(kvasir_option),
                                 &instance_, err);
  });
  if (!instance_) defect("create", "it succeeded without an instance");
}

void Instance::check_table(uint32_t expected_kind, size_t min_table_bytes) {
  kvasir_instance& table = *instance_;
  const auto refuse = [&](const std::string& what) {
    // The base struct is whole: let the plugin clean up. Otherwise nothing in it can be trusted.
    if (table.struct_size >= abi_least::kInstanceBytes && table.destroy) table.destroy(table.self);
    instance_ = nullptr;
    defect("create", what);
  };
  if (table.struct_size < min_table_bytes) {
    refuse("its instance has " + std::to_string(table.struct_size) + " bytes; a " +
           kind_name(expected_kind) + " has at least " + std::to_string(min_table_bytes) +
           " (set struct_size to the whole table)");
  }
  if (table.kind != expected_kind) {
    refuse(std::string("its instance is a ") + kind_name(table.kind) + ", not a " +
           kind_name(expected_kind));
  }
  if (!table.bind || !table.destroy) refuse("its instance has no bind or no destroy");
  if (!table.desc || !table.desc->id || std::strcmp(table.desc->id, plugin_.desc->id) != 0) {
    refuse("its instance does not point to its own description");
  }
  const int n_seq = !!table.seq_open + !!table.seq_fork + !!table.seq_truncate + !!table.seq_close;
  if (n_seq != 0 && n_seq != 4) refuse("it has some seq_* functions, but not all four");
}

Instance::~Instance() {
  if (!instance_) return;
  unfailing_call("destroy", [&] {
    kvasir_err err{};
    err.struct_size = sizeof(err);
    if (instance_->drain) instance_->drain(instance_->self, kDrainMilliseconds, &err);
    instance_->destroy(instance_->self);
  });
  if (checked_) tell_leftovers();
}

const void* Instance::extension(const char* id) const {
  if (!instance_->get_extension) return nullptr;
  return unfailing_call("get_extension",
                        [&] { return instance_->get_extension(instance_->self, id); });
}

std::string Instance::build_id() const {
  return build_id_of(reinterpret_cast<const void*>(instance_->bind));
}

bool Instance::reads(uint32_t mem_kind) const {
  return in_mask(KVASIR_HAS(&desc(), kvasir_desc, mem_kinds_read) ? desc().mem_kinds_read : 0,
                 mem_kind);
}

bool Instance::writes(uint32_t mem_kind) const {
  return in_mask(KVASIR_HAS(&desc(), kvasir_desc, mem_kinds_write) ? desc().mem_kinds_write : 0,
                 mem_kind);
}

void Instance::validate(const kvasir_geometry& geometry) const {
  if (!instance_->validate) return;
  control_call("validate", [&](kvasir_err* err) {
    return instance_->validate(instance_->self, &geometry, err);
  });
}

void Instance::bind(const kvasir_geometry& geometry) {
  std::optional<OnAllCores> on_all_cores;  // threads that it starts are to have them, too
  if (desc().caps & KVASIR_CAP_OWN_THREADS) on_all_cores.emplace();
  control_call("bind",
               [&](kvasir_err* err) { return instance_->bind(instance_->self, &geometry, err); });
  is_bound_ = true;
  if (checked_) checked_->geometry = geometry;
}

void Instance::seq_open(uint64_t seq) {
  if (!instance_->seq_open) return;
  control_call("seq_open",
               [&](kvasir_err* err) { return instance_->seq_open(instance_->self, &seq, 1, err); });
}

void Instance::seq_fork(uint64_t parent, uint64_t child) {
  if (!instance_->seq_fork) return;
  control_call("seq_fork", [&](kvasir_err* err) {
    return instance_->seq_fork(instance_->self, &parent, &child, 1, err);
  });
}

kvasir_status Instance::seq_truncate(uint64_t seq, uint32_t kv_len) {
  if (!instance_->seq_truncate) return KVASIR_OK;
  return control_call(
      "seq_truncate",
      [&](kvasir_err* err) {
        return instance_->seq_truncate(instance_->self, &seq, &kv_len, 1, err);
      },
      KVASIR_REBUILD);
}

void Instance::seq_close(uint64_t seq) noexcept {
  if (!instance_->seq_close) return;
  unfailing_call("seq_close", [&] { instance_->seq_close(instance_->self, &seq, 1); });
}

void Instance::fail(const char* function, kvasir_status status, const std::string& text,
                    const kvasir_step* step, uint32_t layer) const {
  std::string place;
  if (layer != Breadcrumb::kNoLayer) place = "layer " + std::to_string(layer) + ": ";
  if (step && step->n_seqs == 1 && step->seqs) {
    place =
        "layer " + std::to_string(layer) + ", sequence " + std::to_string(step->seqs[0].id) + ": ";
  }
  throw PluginError(id(), function, status, text, kind_of(function, status),
                    std::string(" ") + plugin_.desc->version + " (" + plugin_.path + ")", place);
}

void Instance::defect(const char* function, const std::string& what) const {
  fail(function, KVASIR_ERR_INTERNAL, what + " (a defect of the plugin)");
}

void Instance::finish(const char* function, CallArguments& arguments) const {
  if (!checked_) return;
  const std::string fault = arguments.finish();
  if (!fault.empty()) defect(function, fault);
  const uint64_t most = checked_->declared / 2 * 3 + kUndeclaredBytes;
  if (checked_->declared == UINT64_MAX || checked_->told_growth || checked_->allocated < 0 ||
      static_cast<uint64_t>(checked_->allocated) <= most)
    return;
  checked_->told_growth = true;
  services_.log(KVASIR_LOG_WARN, id(),
                "it keeps " + std::to_string(checked_->allocated) + " bytes by now, and said " +
                    std::to_string(checked_->declared) +
                    " at most (state_bytes, state_peak_bytes): plans count too little");
}

void Instance::tell_leftovers() const noexcept {
  try {
    if (const size_t n = checked_->descriptors.size())
      services_.log(KVASIR_LOG_WARN, id(),
                    "destroy left " + std::to_string(n) + " descriptors open, the first " +
                        std::to_string(*checked_->descriptors.begin()));
    if (checked_->allocated > kLeftBytes)
      services_.log(KVASIR_LOG_WARN, id(),
                    "destroy left " + std::to_string(checked_->allocated) + " bytes allocated");
  } catch (const std::exception&) {  // no memory for the line
  }
}

void Instance::tell_restored(const char* function, uint32_t parts) const noexcept {
  try {
    services_.log(KVASIR_LOG_WARN, id(), restored_text(function, parts));
  } catch (const std::exception&) {  // no memory for the line
  }
}

bool Instance::keeps_sequences() const { return instance_->seq_open != nullptr; }

const kvasir_state& Instance::state_table() const {
  const auto* table = static_cast<const kvasir_state*>(extension(KVASIR_EXT_STATE));
  if (!table || table->struct_size < sizeof(kvasir_state) || !table->save || !table->load)
    throw input_error("plugin " + id() +
                      " keeps state per sequence and cannot save it (it has no " +
                      KVASIR_EXT_STATE + "): the sequence can be forked, not saved");
  return *table;
}

std::vector<std::byte> Instance::save_state(uint64_t seq) const {
  const kvasir_state& table = state_table();
  std::vector<std::byte> out;
  control_call("save", [&](kvasir_err* err) {
    return table.save(
        instance_->self, seq,
        [](void* user, const void* bytes, uint64_t n) noexcept -> int32_t {
          try {
            auto& all = *static_cast<std::vector<std::byte>*>(user);
            const auto* from = static_cast<const std::byte*>(bytes);
            all.insert(all.end(), from, from + n);
            return 0;
          } catch (const std::exception&) {
            return 1;  // no memory
          }
        },
        &out, err);
  });
  return out;
}

void Instance::load_state(uint64_t seq, std::span<const std::byte> bytes) {
  const kvasir_state& table = state_table();
  control_call("load", [&](kvasir_err* err) {
    return table.load(instance_->self, seq, bytes.data(), bytes.size(), err);
  });
}

void Instance::require(bool slot, const char* function) const {
  if (!slot) {
    throw Error(ErrorKind::kInternal, std::string("plugin ") + plugin_.desc->id + " has no " +
                                          function + "(), and it was called");
  }
}

RecordLayout Instance::checked_layout(const kvasir_layout& layout, uint32_t kind) const {
  constexpr uint64_t kMaxRecordBytes = UINT64_C(1) << 24;  // of one block of one kv head
  constexpr uint32_t kMaxPageBytes = UINT32_C(1) << 28;
  constexpr uint32_t kFlags = KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_WANT_PROMPT_END |
                              KVASIR_LAYOUT_SEALED_ONLY | KVASIR_LAYOUT_WANT_FINAL |
                              KVASIR_LAYOUT_PROMPT_END_ALL | KVASIR_LAYOUT_PER_TOKEN |
                              KVASIR_LAYOUT_OBSERVE_WRITES | KVASIR_LAYOUT_READS_NEW;
  const bool is_selector = kind == KVASIR_KIND_SELECTOR;
  const kvasir_mass_wish& mass = layout.mass;
  const auto demand = [&](bool is_met, const std::string& what) {
    if (!is_met) defect("layout", what);
  };
  demand(layout.record_bytes % 4 == 0 && layout.record_bytes <= kMaxRecordBytes &&
             layout.open_bytes <= kMaxRecordBytes && (is_selector || layout.record_bytes != 0),
         "record_bytes = " + std::to_string(layout.record_bytes) + ", open_bytes = " +
             std::to_string(layout.open_bytes) + "; records are a multiple of 4 up to 16 MiB");
  demand(layout.page_bytes % 64 == 0 && layout.page_bytes <= kMaxPageBytes &&
             (layout.page_bytes == 0 || layout.record_bytes != 0) && layout.reserved == 0,
         "page_bytes = " + std::to_string(layout.page_bytes) +
             "; beside records, a multiple of 64 up to 256 MiB, reserved zero");
  demand(!(layout.flags & ~kFlags), "unknown flags");
  demand(is_selector || !(layout.flags & KVASIR_LAYOUT_OBSERVE_WRITES),
         "OBSERVE_WRITES is for selectors: a representative has no observe()");
  demand(!(mass.at & ~(KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE)) &&
             mass.part <= KVASIR_PART_WINDOW,
         "mass.at or mass.part is unknown");
  demand(mass.at == 0 || (mass.level == KVASIR_MASS_TOKEN && mass.reduce == KVASIR_MASS_PER_Q_HEAD),
         "items carry mass per token and query head: mass.level must be TOKEN, mass.reduce "
         "PER_Q_HEAD");
  demand(mass.at == 0 || (desc().needs & KVASIR_NEED_MASS),
         "it asks for attention mass without KVASIR_NEED_MASS");
  demand(!is_selector || (layout.memory.state_bytes | layout.memory.state_peak_bytes) == 0,
         "a selector says its memory in limits(), not in layout()");
  demand(layout.mem_kind == KVASIR_MEM_HOST || layout.mem_kind == KVASIR_MEM_DEVICE,
         "mem_kind = " + std::to_string(layout.mem_kind) + " is neither HOST nor DEVICE");
  demand(reads(layout.mem_kind) && writes(layout.mem_kind),
         "it wants its records in memory that its description does not name");
  demand(mass.reserved == 0, "reserved is not zero");
  return {layout.flags,
          layout.record_bytes,
          layout.open_bytes,
          layout.format,
          layout.page_bytes,
          mass.at,
          mass.part,
          mass.last_queries,
          layout.refresh_tokens,
          layout.memory.state_bytes,
          layout.memory.state_peak_bytes,
          layout.mem_kind};
}

}  // namespace kvasir
