// Calls of a storage whose blocks outlive the process: kvasir.store/1.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {

bool Storage::has_store() const {
  const auto* t = static_cast<const kvasir_store*>(extension(KVASIR_EXT_STORE));
  return t && KVASIR_HAS(t, kvasir_store, prune) && t->name_run && t->restore && t->list &&
         t->verify && t->prune;
}

const kvasir_store& Storage::store_table() const {
  require(has_store(), KVASIR_EXT_STORE);
  return *static_cast<const kvasir_store*>(extension(KVASIR_EXT_STORE));
}

void Storage::name_run(const std::array<uint64_t, 2>& run, const std::string& about) {
  control_call("name_run", [&](kvasir_err* err) {
    return store_table().name_run(base().self, run.data(), about.c_str(), err);
  });
}

void Storage::restore(const std::vector<kvasir_block_key>& keys, kvasir_lease* out) {
  const kvasir_store& store = store_table();
  CallArguments arguments(checked_.get());
  const kvasir_block_key* const given_keys = arguments.keys(keys);
  kvasir_lease* const given_out = arguments.leases({out, keys.size()});
  step_call("restore", nullptr, [&](kvasir_err* err) {
    return store.restore(base().self, given_keys, static_cast<uint32_t>(keys.size()),
                         sizeof(kvasir_block_key), given_out, sizeof(kvasir_lease), err);
  });
  finish("restore", arguments);
  check_leases("restore", keys, out);
}

std::vector<kvasir_store_run> Storage::list_store() const {
  const kvasir_store& store = store_table();
  std::vector<kvasir_store_run> runs;
  uint32_t n = 16;
  while (n > runs.size()) {
    runs.resize(n);
    control_call("list", [&](kvasir_err* err) {
      return store.list(base().self, runs.data(), static_cast<uint32_t>(runs.size()),
                        sizeof(kvasir_store_run), &n, err);
    });
    if (n > 1'000'000) defect("list", std::to_string(n) + " runs");
  }
  runs.resize(n);
  for (kvasir_store_run& run : runs) run.about[sizeof run.about - 1] = 0;
  return runs;
}

kvasir_store_result Storage::verify_store(const kvasir_store_filter& filter,
                                          const BadRecord& bad) const {
  const auto tell = [](void* context, const char* name, const char* why) {
    (*static_cast<const BadRecord*>(context))(name, why);
  };
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  const kvasir_store& store = store_table();
  control_call("verify", [&](kvasir_err* err) {
    return store.verify(base().self, &filter, tell, const_cast<BadRecord*>(&bad), &out, err);
  });
  return out;
}

kvasir_store_result Storage::prune_store(const kvasir_store_filter& filter) const {
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  const kvasir_store& store = store_table();
  control_call("prune",
               [&](kvasir_err* err) { return store.prune(base().self, &filter, &out, err); });
  return out;
}

}  // namespace kvasir
