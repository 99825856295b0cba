// kvasir.store/1 for a storage class with name_run(run, about), restore(keys, leases), list(),
// verify(filter, bad) and prune(filter).
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/ext/draft/store.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <functional>
#include <string>

namespace kvasir::sdk {

using BadRecord = std::function<void(const std::string& name, const std::string& why)>;

template <class T>
const kvasir_store* store_table() {
  static constexpr kvasir_store kTable = {
      sizeof(kvasir_store),
      0,
      [](void* self, const uint64_t* run, const char* about, kvasir_err* err) noexcept {
        return guard(err, [&] { detail::as<T>(self).name_run({run[0], run[1]}, about); });
      },
      [](void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size, kvasir_lease* out,
         uint32_t lease_size, kvasir_err* err) noexcept {
        return guard(err, [&] {
          detail::as<T>(self).restore(BlockKeys(keys, n, key_size), Leases(out, n, lease_size));
        });
      },
      [](void* self, kvasir_store_run* out, uint32_t capacity, uint32_t run_size, uint32_t* n_runs,
         kvasir_err* err) noexcept {
        return guard(err, [&] {
          const auto runs = detail::as<T>(self).list();
          *n_runs = static_cast<uint32_t>(runs.size());
          const Strided<kvasir_store_run> to(out, std::min(capacity, *n_runs), run_size);
          for (uint32_t i = 0; i < to.size(); ++i) to[i] = runs[i];
        });
      },
      [](void* self, const kvasir_store_filter* filter,
         void (*bad)(void* context, const char* name, const char* why), void* context,
         kvasir_store_result* out, kvasir_err* err) noexcept {
        return guard(err, [&] {
          *out = detail::as<T>(self).verify(*filter, [&](const auto& name, const auto& why) {
            if (bad) bad(context, name.c_str(), why.c_str());
          });
        });
      },
      [](void* self, const kvasir_store_filter* filter, kvasir_store_result* out,
         kvasir_err* err) noexcept {
        return guard(err, [&] { *out = detail::as<T>(self).prune(*filter); });
      }};
  return &kTable;
}

}  // namespace kvasir::sdk
