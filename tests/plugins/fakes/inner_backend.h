// An attention backend for fakes that leave the arithmetic to another one: the first plugin of a
// file, with its default options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <kvasir/sdk/plugin.h>

#include <string>
#include <vector>

namespace kvasir::test {

class InnerBackend {
 public:
  // No path: kvasir.reference, in double precision.
  explicit InnerBackend(const kvasir_host* host, std::string path = "") {
    if (path.empty()) path = KVASIR_BINARY_DIR "/plugins/reference.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // plugins are never unloaded
    if (!library) sdk::fail_invalid(dlerror());
    const auto entry =
        reinterpret_cast<decltype(&kvasir_plugin_entry)>(dlsym(library, "kvasir_plugin_entry"));
    kvasir_request request{sizeof request, 0, nullptr};
    check(entry(host, &request, err()));
    const kvasir_desc& desc = *request.plugin->describe(0);
    std::vector<kvasir_option> options;
    for (uint32_t i = 0; i < desc.n_options; ++i)
      if (!(desc.options[i].flags & KVASIR_OPTION_OPTIONAL))
        options.push_back({desc.options[i].key, desc.options[i].def, 0, 0});
    kvasir_instance* instance = nullptr;
    check(request.plugin->create(0, host, options.data(), static_cast<uint32_t>(options.size()),
                                 sizeof options[0], &instance, err()));
    table_ = reinterpret_cast<const kvasir_attention*>(instance);
  }
  ~InnerBackend() { table_->base.destroy(self()); }
  InnerBackend(const InnerBackend&) = delete;

  void bind(const kvasir_geometry& geometry) {
    g_ = geometry;
    check(table_->base.bind(self(), &geometry, err()));
  }
  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    check(table_->plan(self(), &shape, &out, err()));
  }
  void run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    check(table_->run(self(), &step.raw(), &in, &out, err()));
  }
  void mass(const sdk::Step& step, const kvasir_attn_in& in, const kvasir_attn_mass& out) {
    check(table_->mass(self(), &step.raw(), &in, &out, err()));
  }

 protected:
  kvasir_geometry g_{};

 private:
  void* self() const { return table_->base.self; }
  kvasir_err* err() {
    err_ = {sizeof err_, 0, {}};
    return &err_;
  }
  void check(kvasir_status status) const {
    if (status != KVASIR_OK) throw sdk::Error(status, err_.text);
  }

  kvasir_err err_{};
  const kvasir_attention* table_ = nullptr;
};

}  // namespace kvasir::test
