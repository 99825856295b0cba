// A shipped plugin for device plugins that leave the arithmetic to it: the first of its file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <kvasir/sdk/plugin.h>

#include <string>
#include <vector>

namespace kvasir::test {

template <class Table>
class InnerPlugin {
 public:
  // set: an integer option that is not to have its default.
  InnerPlugin(const kvasir_host* host, const std::string& name, const std::string& set = "",
              int64_t value = 0) {
    const std::string path = KVASIR_BINARY_DIR "/plugins/" + name + ".so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // plugins are never unloaded
    if (!library) sdk::fail_invalid(dlerror());
    const auto entry =
        reinterpret_cast<decltype(&kvasir_plugin_entry)>(dlsym(library, "kvasir_plugin_entry"));
    kvasir_request request{sizeof request, 0, nullptr};
    check(entry(host, &request, err()));
    const kvasir_desc& desc = *request.plugin->describe(0);
    std::vector<kvasir_option> options;
    for (uint32_t i = 0; i < desc.n_options; ++i) {
      const bool is_set = desc.options[i].key == set;
      if (!is_set && desc.options[i].flags & KVASIR_OPTION_OPTIONAL) continue;
      options.push_back({desc.options[i].key, desc.options[i].def, is_set, 0});
      if (is_set) options.back().value = {KVASIR_OPTION_INT, 0, value, 0.0, nullptr, nullptr};
    }
    kvasir_instance* instance = nullptr;
    check(request.plugin->create(0, host, options.data(), static_cast<uint32_t>(options.size()),
                                 sizeof(kvasir_option), &instance, err()));
    table_ = reinterpret_cast<const Table*>(instance);
  }
  ~InnerPlugin() { table_->base.destroy(self()); }
  InnerPlugin(const InnerPlugin&) = delete;

  // The geometry lives as long as the instance, as the host's does.
  void bind(const kvasir_geometry& geometry) { check(table_->base.bind(self(), &geometry, err())); }
  void* self() const { return table_->base.self; }
  const Table* operator->() const { return table_; }
  kvasir_err* err() {
    err_ = {sizeof err_, 0, {}};
    return &err_;
  }
  void check(kvasir_status status) const {
    if (status != KVASIR_OK) throw sdk::Error(status, err_.text);
  }

 private:
  kvasir_err err_{};
  const Table* table_ = nullptr;
};

}  // namespace kvasir::test
