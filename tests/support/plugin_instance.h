// One plugin, called through the C ABI without the core: dlopen, options from the schema, the error
// record of the latest call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <kvasir/kvasir.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tests/plugins/fakes/probe.h"
#include "tests/support/fake_host.h"

namespace kvasir::test {

// Enum names and paths are strings. Keys are the schema's own.
using OptionValues = std::map<std::string, std::variant<int64_t, double, std::string>>;

using Entry = decltype(&kvasir_plugin_entry);
// Of a shipped plugin, <build>/plugins/<name>.so, or of the file at a path. Never unloaded.
inline Entry entry_of(const std::string& plugin) {
  const bool is_path = plugin.find('/') != std::string::npos;
  const std::string path =
      is_path ? plugin : std::string(KVASIR_BINARY_DIR) + "/plugins/" + plugin + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library, dlerror());
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "kvasir_plugin_entry"));
  REQUIRE(static_cast<bool>(entry));
  return entry;
}

// As the host hands it to limits().
inline kvasir_sel_limits blank_limits() {
  kvasir_sel_limits limits{};
  limits.struct_size = sizeof limits;
  limits.max_units = KVASIR_NO_LIMIT;
  return limits;
}

// Whether the host decides between these options of the only plugin in a file.
inline bool are_alternatives(const FakeHost& host, const std::string& plugin,
                             std::initializer_list<const char*> keys) {
  kvasir_request request{sizeof(kvasir_request), 0, nullptr};
  kvasir_err err{sizeof err, 0, {}};
  REQUIRE(entry_of(plugin)(host.host(), &request, &err) == KVASIR_OK);
  const kvasir_desc& desc = *request.plugin->describe(0);
  std::map<std::string, std::string> group;
  for (uint32_t i = 0; i < desc.n_options; ++i)
    if (desc.options[i].group) group[desc.options[i].key] = desc.options[i].group;
  const std::string first = group[*keys.begin()];
  for (const char* key : keys)
    if (group[key] != first) return false;
  return first != "";
}

// One instance of the only plugin in a file. When create() fails, status() and text() say why, and
// nothing else may be called. Table = kvasir_selector, …
template <class Table>
class PluginInstance {
 public:
  PluginInstance(const FakeHost& host, const std::string& plugin, const OptionValues& set = {}) {
    const auto entry = entry_of(plugin);
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

  // Of a fake: what it has seen (tests/plugins/fakes/probe.h).
  double probe(uint32_t item) const {
    const auto* probe =
        static_cast<const Probe*>(instance_->get_extension(self(), kProbeExtension));
    REQUIRE(probe != nullptr);
    return probe->read(self(), item);
  }

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
      if (found == set.end() && schema.group && another_is_set(schema, set)) continue;
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
  bool another_is_set(const kvasir_option_schema& schema, const OptionValues& set) const {
    for (uint32_t i = 0; i < desc_->n_options; ++i) {
      const kvasir_option_schema& other = desc_->options[i];
      if (other.group && std::string(other.group) == schema.group && set.count(other.key) != 0)
        return true;
    }
    return false;
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

}  // namespace kvasir::test
