// A host as small as it can be, for tests that call one plugin through the C ABI: dlopen, options
// from the schema, thread pool (real threads), scratch and log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <kvasir/kvasir.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace kvasir::test {

class FakeHost {
 public:
  // workers = 0: a host without any extension.
  // nodes: of each worker; empty: a host that does not say.
  explicit FakeHost(uint32_t workers = 0, std::vector<int32_t> nodes = {})
      : workers_(workers), nodes_(std::move(nodes)), scratch_memory_(workers) {
    host_ = {sizeof host_, KVASIR_ABI_MAJOR,         KVASIR_ABI_MINOR, KVASIR_ABI_MINOR, "fake",
             "0",          static_cast<void*>(this), &get_extension};
    pool_ = {
        sizeof pool_, 0, this, &max_workers, &parallel_for, nodes_.empty() ? nullptr : &node_of};
    scratch_ = {sizeof scratch_, 0, this, &scratch};
    log_ = {sizeof log_, 0, this, &write};
  }
  FakeHost(const FakeHost&) = delete;
  const kvasir_host* host() const { return &host_; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static FakeHost& from(void* self) { return *static_cast<FakeHost*>(self); }

  static const void* get_extension(void* self, const char* id) noexcept {
    FakeHost& h = from(self);
    if (h.workers_ == 0) return nullptr;
    if (std::strcmp(id, KVASIR_EXT_THREAD_POOL) == 0) return &h.pool_;
    if (std::strcmp(id, KVASIR_EXT_SCRATCH) == 0) return &h.scratch_;
    return std::strcmp(id, KVASIR_EXT_LOG) == 0 ? &h.log_ : nullptr;
  }
  static uint32_t max_workers(void* self) noexcept { return from(self).workers_; }
  static int32_t node_of(void* self, uint32_t worker) noexcept {
    return from(self).nodes_.at(worker);
  }
  static int32_t parallel_for(void* self, uint64_t n, uint64_t grain, kvasir_task task,
                              void* user) noexcept {
    const uint64_t workers = from(self).workers_;
    const uint64_t piece = grain != 0 ? grain : (n + workers - 1) / workers;
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < workers; ++w) {
      threads.emplace_back([=] {
        for (uint64_t begin = w * piece; begin < n; begin += workers * piece) {
          task(user, begin, begin + piece < n ? begin + piece : n, w);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return 0;
  }
  static void* scratch(void* self, uint32_t worker, uint64_t bytes) noexcept {
    auto& memory = from(self).scratch_memory_[worker];
    memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    return memory.get();
  }
  static void write(void* self, uint32_t, const char* id, const char* text) noexcept {
    const std::lock_guard lock(from(self).mutex_);
    from(self).lines_.push_back(std::string(id) + ": " + text);
  }

  uint32_t workers_;
  std::vector<int32_t> nodes_;
  std::vector<std::unique_ptr<std::byte[], Free>> scratch_memory_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  kvasir_host host_{};
  kvasir_thread_pool pool_{};
  kvasir_scratch scratch_{};
  kvasir_log log_{};
};

// Enum names and paths are strings. Keys are the schema's own.
using OptionValues = std::map<std::string, std::variant<int64_t, double, std::string>>;

// One instance of <build>/plugins/<name>.so. When create() fails, instance() is null and err() says
// why. Table = kvasir_selector, …
template <class Table>
class PluginInstance {
 public:
  PluginInstance(const FakeHost& host, const std::string& name, const OptionValues& set = {}) {
    const std::string path = std::string(KVASIR_BINARY_DIR) + "/plugins/" + name + ".so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // plugins are never unloaded
    REQUIRE_MESSAGE(library, dlerror());
    auto entry =
        reinterpret_cast<decltype(&kvasir_plugin_entry)>(dlsym(library, "kvasir_plugin_entry"));
    REQUIRE(static_cast<bool>(entry));
    kvasir_request request{sizeof(kvasir_request), 0, nullptr};
    REQUIRE(entry(host.host(), &request, &err_) == KVASIR_OK);
    REQUIRE(request.plugin->count() == 1);
    desc_ = request.plugin->describe(0);
    CHECK(request.plugin->describe(1) == nullptr);
    const std::vector<kvasir_option> options = resolve(set);
    kvasir_instance* instance = nullptr;
    status_ = request.plugin->create(0, host.host(), options.data(),
                                     static_cast<uint32_t>(options.size()), sizeof(kvasir_option),
                                     &instance, &err_);
    instance_.reset(instance);
    if (instance) REQUIRE(instance->struct_size == sizeof(Table));
  }

  kvasir_status status() const { return status_; }  // of create()
  const kvasir_desc& desc() const { return *desc_; }
  // Cleared before, so that a text belongs to the latest call.
  kvasir_err* err() {
    err_ = {sizeof err_, 0, {}};
    return &err_;
  }
  std::string text() const { return err_.text; }
  void* self() const { return instance_->self; }
  const Table* operator->() const { return reinterpret_cast<const Table*>(instance_.get()); }

  void bind(const kvasir_geometry& geometry) {
    if (instance_->validate) {
      REQUIRE_MESSAGE(instance_->validate(self(), &geometry, err()) == KVASIR_OK, text());
    }
    REQUIRE_MESSAGE(instance_->bind(self(), &geometry, err()) == KVASIR_OK, text());
  }

 private:
  std::vector<kvasir_option> resolve(const OptionValues& set) const {
    std::vector<kvasir_option> out;
    size_t used = 0;
    for (uint32_t i = 0; i < desc_->n_options; ++i) {
      const kvasir_option_schema& schema = desc_->options[i];
      const auto found = set.find(schema.key);
      if (found == set.end() && (schema.flags & KVASIR_OPTION_OPTIONAL)) continue;
      kvasir_option option{schema.key, schema.def, 0, 0};
      if (found != set.end()) {
        ++used;
        option.is_set = 1;
        option.value = value(schema, found->second);
      }
      out.push_back(option);
    }
    REQUIRE_MESSAGE(used == set.size(), "a test sets an option the plugin does not have");
    return out;
  }
  static kvasir_value value(const kvasir_option_schema& schema,
                            const OptionValues::mapped_type& v) {
    kvasir_value out{schema.type, 0, 0, 0.0, nullptr, nullptr};
    if (const auto* i = std::get_if<int64_t>(&v)) out.i = *i;
    if (const auto* f = std::get_if<double>(&v)) out.f = *f;
    const auto* s = std::get_if<std::string>(&v);
    if (s && schema.type == KVASIR_OPTION_PATH) out.s = s->c_str();
    if (s && schema.type == KVASIR_OPTION_ENUM) {
      while (*s != schema.enum_names[out.i]) REQUIRE(++out.i < schema.n_enum);
    }
    return out;
  }

  struct Destroy {
    void operator()(kvasir_instance* instance) const { instance->destroy(instance->self); }
  };
  kvasir_err err_{sizeof(kvasir_err), 0, {}};
  const kvasir_desc* desc_ = nullptr;
  kvasir_status status_ = KVASIR_OK;
  std::unique_ptr<kvasir_instance, Destroy> instance_;
};

inline kvasir_geometry small_geometry() {
  kvasir_geometry g{};
  g.struct_size = sizeof g;
  g.n_layers = 2;
  g.n_q_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = g.v_dim = 8;
  g.block_size = 16;
  g.max_context = 4096;
  g.max_sequences = 4;
  g.max_queries = 64;
  g.format_size = sizeof(kvasir_kv_format);
  g.softmax_scale = 1.0f;
  return g;
}

// Buffers of a selection, each filled with a pattern so that stray writes are seen.
struct SelectionBuffer {
  std::vector<uint64_t> row_offsets;
  std::vector<uint32_t> row_flags, index;
  kvasir_selection selection{};

  SelectionBuffer(uint32_t unit, uint32_t scope, uint32_t n_rows, uint64_t capacity)
      : row_offsets(n_rows + 1, 0xdead), row_flags(n_rows, 0), index(capacity, 0xbeef) {
    selection.struct_size = sizeof selection;
    selection.unit = unit;
    selection.scope = scope;
    selection.capacity = capacity;
    selection.row_offsets = row_offsets.data();
    selection.row_flags = row_flags.data();
    selection.index = index.data();
  }
  std::vector<uint32_t> row(uint32_t i) const {
    return {index.begin() + static_cast<long>(row_offsets[i]),
            index.begin() + static_cast<long>(row_offsets[i + 1])};
  }
};

}  // namespace kvasir::test
