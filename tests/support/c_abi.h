// Calls one plugin through the C ABI, without the core: a host that records completions, options
// from the schema, keys in host memory, slabs, selections. For tests of plugins that are test
// material themselves. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <kvasir/kvasir.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/plugins/fakes/probe.h"

namespace kvasir::test::c_abi {

// Offers kvasir.completion/1, or nothing.
class Host {
 public:
  struct Report {
    kvasir_status status = KVASIR_OK;
    std::vector<kvasir_status> blocks;
    int times = 0;
  };
  explicit Host(bool completions = true) : completions_(completions) {
    host_ = {sizeof host_, KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR, KVASIR_ABI_MINOR, "test", "0",
             this,         &extension};
    completion_ = {sizeof completion_, 0, this, &complete};
  }
  Host(const Host&) = delete;
  const kvasir_host* get() const { return &host_; }
  Report wait(uint64_t ticket) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return reports_.count(ticket) != 0; });
    return reports_[ticket];
  }

 private:
  static const void* extension(void* self, const char* id) noexcept {
    const Host& host = *static_cast<Host*>(self);
    return host.completions_ && std::strcmp(id, KVASIR_EXT_COMPLETION) == 0 ? &host.completion_
                                                                            : nullptr;
  }
  static void complete(void* self, uint64_t ticket, kvasir_status status,
                       const kvasir_status* block_status, uint32_t n_blocks, uint64_t) noexcept {
    Host& host = *static_cast<Host*>(self);
    const std::lock_guard lock(host.mutex_);
    Report& report = host.reports_[ticket];
    report.status = status;
    report.times += 1;
    for (uint32_t i = 0; i < n_blocks; ++i)
      report.blocks.push_back(block_status ? block_status[i] : status);
    host.arrived_.notify_all();
  }

  bool completions_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<uint64_t, Report> reports_;
  kvasir_host host_{};
  kvasir_completion completion_{};
};

// Values by key: numbers as they are, enums by index.
using Options = std::map<std::string, double>;

// One instance of the only plugin in a file; Table is kvasir_selector, kvasir_storage, …
template <class Table>
class Plugin {
 public:
  Plugin(Host& host, const std::string& path, const Options& set = {}) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, dlerror());
    const auto entry =
        reinterpret_cast<decltype(&kvasir_plugin_entry)>(dlsym(library, "kvasir_plugin_entry"));
    kvasir_request request{sizeof(kvasir_request), 0, nullptr};
    REQUIRE(entry(host.get(), &request, err()) == KVASIR_OK);
    REQUIRE(request.abi_minor == KVASIR_ABI_MINOR);
    REQUIRE(request.plugin->count() == 1);
    CHECK(request.plugin->describe(1) == nullptr);
    desc = request.plugin->describe(0);
    std::vector<kvasir_option> options;
    for (uint32_t i = 0; i < desc->n_options; ++i) {
      kvasir_option option{desc->options[i].key, desc->options[i].def, 0, 0};
      if (const auto given = set.find(option.key); given != set.end()) {
        option.is_set = 1;
        option.value.i = static_cast<int64_t>(given->second);
        option.value.f = given->second;
      }
      options.push_back(option);
    }
    for (const auto& [key, value] : set) {
      bool known = false;
      for (const auto& option : options) known = known || key == option.key;
      REQUIRE_MESSAGE(known, key);
    }
    kvasir_instance* base = nullptr;
    REQUIRE(request.plugin->create(0, host.get(), options.data(), uint32_t(options.size()),
                                   sizeof(kvasir_option), &base, err()) == KVASIR_OK);
    REQUIRE(base->struct_size == sizeof(Table));
    REQUIRE(base->desc == desc);
    table_ = reinterpret_cast<Table*>(base);
  }
  ~Plugin() { base().destroy(self()); }
  Plugin(const Plugin&) = delete;

  const Table* operator->() const { return table_; }
  const kvasir_instance& base() const { return table_->base; }
  void* self() const { return table_->base.self; }
  void bind(const kvasir_geometry& geometry) {
    REQUIRE(base().bind(self(), &geometry, err()) == KVASIR_OK);
  }
  void open(uint64_t seq) { REQUIRE(base().seq_open(self(), &seq, 1, err()) == KVASIR_OK); }
  double probe(uint32_t item, uint64_t seq = 1, uint32_t layer = 0) const {
    const auto* probe = static_cast<const fake_probe*>(base().get_extension(self(), FAKE_PROBE));
    REQUIRE(probe != nullptr);
    return probe->read(self(), seq, layer, item);
  }
  // Cleared, so that the text is of the next call.
  kvasir_err* err() {
    err_ = {sizeof err_, 0, {}};
    return &err_;
  }
  std::string text() const { return err_.text; }

  const kvasir_desc* desc = nullptr;

 private:
  Table* table_ = nullptr;
  kvasir_err err_{};
};

// f32, two layers, 4 query heads over 2 kv heads of 8 elements, blocks of 4 tokens. `formats` must
// outlive the copy's use.
inline kvasir_geometry geometry(const kvasir_kv_format& format) {
  kvasir_geometry g{};
  g.struct_size = sizeof g;
  g.n_layers = 2;
  g.n_q_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = g.v_dim = 8;
  g.block_size = 4;
  g.max_context = 64;
  g.max_sequences = 2;
  g.max_queries = 16;
  g.window_tokens = 8;
  g.n_formats = 1;
  g.format_size = sizeof format;
  g.formats = &format;
  g.softmax_scale = 0.35f;
  g.seed = 7;
  return g;
}
inline kvasir_kv_format format() {
  return {sizeof(kvasir_kv_format),
          KVASIR_DTYPE_F32,
          KVASIR_DTYPE_F32,
          KVASIR_MEM_HOST,
          32,
          32,
          4 * 32,
          4 * 32};
}

inline std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (auto& value : values) value = normal(generator);
  return values;
}

// Random K and V of one sequence and layer, [block][kv_head][token][element], and their leases.
struct Keys {
  Keys(const kvasir_geometry& of, uint32_t kv_len, uint32_t seed)
      : g(of), block_floats(size_t{g.n_kv_heads} * g.block_size * g.head_dim) {
    const uint32_t n_blocks = (kv_len + g.block_size - 1) / g.block_size;
    k = random_floats(n_blocks * block_floats, seed);
    v = random_floats(n_blocks * block_floats, seed + 1);
    for (uint32_t b = 0; b < n_blocks; ++b) {
      kvasir_lease lease{};
      lease.lease = b + 1;
      lease.k = k.data() + b * block_floats;
      lease.v = v.data() + b * block_floats;
      lease.pos_begin = b * g.block_size;
      lease.n_tokens = std::min(g.block_size, kv_len - lease.pos_begin);
      lease.kv_head = KVASIR_ALL_HEADS;
      leases.push_back(lease);
    }
  }
  double at(const std::vector<float>& of, uint32_t kv_head, uint32_t token, uint32_t d) const {
    const size_t row = size_t{kv_head} * g.block_size + token % g.block_size;
    return double{of[token / g.block_size * block_floats + row * g.head_dim + d]};
  }
  double key(uint32_t kv_head, uint32_t token, uint32_t d) const {
    return at(k, kv_head, token, d);
  }
  double value(uint32_t kv_head, uint32_t t, uint32_t d) const { return at(v, kv_head, t, d); }

  kvasir_geometry g;
  size_t block_floats;
  std::vector<float> k, v;
  std::vector<kvasir_lease> leases;
};

// f32 view of [rows][n_q_heads][head_dim].
inline kvasir_view query_view(const kvasir_geometry& g, std::vector<float>& q) {
  kvasir_view view{};
  view.struct_size = sizeof view;
  view.dtype = KVASIR_DTYPE_F32;
  view.data = q.data();
  view.rank = 3;
  view.shape[1] = g.n_q_heads;
  view.shape[2] = g.head_dim;
  view.stride[2] = sizeof(float);
  view.stride[1] = int64_t{g.head_dim} * view.stride[2];
  view.stride[0] = int64_t{g.n_q_heads} * view.stride[1];
  view.shape[0] = q.size() / (size_t{g.n_q_heads} * g.head_dim);
  return view;
}

// Records of one layer of one sequence, pages of two blocks.
class Slab {
 public:
  Slab(const kvasir_geometry& g, const kvasir_layout& layout, uint32_t n_blocks) {
    const uint64_t n_pages = (n_blocks + 1) / 2;
    row_pages_ = {0, n_pages};
    for (uint64_t p = 0; p < n_pages; ++p) {
      memory_.emplace_back(2 * g.n_kv_heads * layout.record_bytes / 4 + 1);
      open_memory_.emplace_back(2 * g.n_kv_heads * layout.open_bytes / 4 + 1);
    }
    for (uint64_t p = 0; p < n_pages; ++p) {
      pages_.push_back(memory_[p].data());
      open_pages_.push_back(open_memory_[p].data());
    }
    slab_ = {sizeof slab_,
             2,
             layout.record_bytes,
             layout.open_bytes,
             row_pages_.data(),
             pages_.data(),
             layout.open_bytes ? open_pages_.data() : nullptr};
    n_kv_heads_ = g.n_kv_heads;
  }
  const kvasir_slab* get() const { return &slab_; }
  const float* record(uint32_t kv_head, uint32_t block) const {
    return memory_[block / 2].data() +
           (kv_head * 2 + block % 2) * static_cast<size_t>(slab_.record_bytes) / 4;
  }

 private:
  std::vector<std::vector<float>> memory_, open_memory_;
  std::vector<uint64_t> row_pages_;
  std::vector<void*> pages_, open_pages_;
  kvasir_slab slab_{};
  uint32_t n_kv_heads_ = 0;
};

// A step of one sequence (id 1) in layer 0.
struct Step {
  Step(uint32_t moment, uint32_t kv_len, uint32_t unit_begin, uint32_t unit_end, uint32_t n_q = 1) {
    row.seq = 1;
    row.n_q = n_q;
    row.kv_len = row.prompt_end = kv_len;
    row.unit_begin = unit_begin;
    row.unit_end = unit_end;
    step.struct_size = sizeof step;
    step.moment = moment;
    step.n_rows = 1;
    step.row_size = sizeof row;
    step.rows = &row;
  }
  Step(const Step&) = delete;
  kvasir_step_row row{};
  kvasir_step step{};
};

// Room for a result; what lies behind the capacity must stay as it is.
class Result {
 public:
  Result(uint32_t unit, uint32_t scope, uint32_t n_rows, uint64_t capacity, uint32_t group = 2)
      : offsets_(n_rows + 1, 0xdead),
        flags_(n_rows, 0),
        index_(capacity + 4, kCanary),
        weight_(capacity * group + 4, 0) {
    selection.struct_size = sizeof selection;
    selection.unit = unit;
    selection.scope = scope;
    selection.capacity = capacity;
    selection.row_offsets = offsets_.data();
    selection.row_flags = flags_.data();
    selection.index = index_.data();
    selection.log_weight = weight_.data();
  }
  ~Result() {
    for (size_t i = selection.capacity; i < index_.size(); ++i) CHECK(index_[i] == kCanary);
  }
  std::vector<uint32_t> row(uint32_t r) const {
    return {index_.begin() + int64_t(offsets_[r]), index_.begin() + int64_t(offsets_[r + 1])};
  }
  std::vector<float> weights(uint32_t r) const {
    return {weight_.begin() + int64_t(offsets_[r]), weight_.begin() + int64_t(offsets_[r + 1])};
  }
  uint32_t flag(uint32_t r) const { return flags_[r]; }
  kvasir_selection selection{};

 private:
  static constexpr uint32_t kCanary = 0xbeefbeef;
  std::vector<uint64_t> offsets_;
  std::vector<uint32_t> flags_, index_;
  std::vector<float> weight_;
};

// What the header promises of a result: monotone offsets, rows ascending, unique, inside
// [begin, end), finite weights, as many rows as the scope asks for. Empty, or the first violation.
inline std::string violation(const kvasir_selection& s, uint32_t n_rows, uint32_t begin,
                             uint32_t end) {
  if (s.n_rows != n_rows) return "rows";
  if (s.row_offsets[0] != 0) return "offsets";
  for (uint32_t r = 0; r < n_rows; ++r) {
    if (s.row_offsets[r + 1] < s.row_offsets[r]) return "offsets";
    if (s.row_offsets[r + 1] > s.capacity) return "capacity";
    if (s.row_flags[r] > KVASIR_ROW_FALLBACK) return "flag";
    for (uint64_t i = s.row_offsets[r]; i < s.row_offsets[r + 1]; ++i) {
      if (s.index[i] < begin || s.index[i] >= end) return "range";
      if (i > s.row_offsets[r] && s.index[i] == s.index[i - 1]) return "duplicate";
      if (i > s.row_offsets[r] && s.index[i] < s.index[i - 1]) return "order";
      if (s.weight_width == 1 && !(s.log_weight[i] < std::numeric_limits<float>::infinity()))
        return "weight";
    }
  }
  return "";
}

}  // namespace kvasir::test::c_abi
