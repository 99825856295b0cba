// A storage in memory that takes `needed` at its word: of a key that names tokens it leases a copy
// in which all others are NaN. Probe: 0 = such leases, 1 = leases.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tests/plugins/fakes/memory_storage.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

class PoisonStorage : public MemoryStorage {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_STORAGE, "kvasir.test.poison_storage", {});

  PoisonStorage(const sdk::Host&, const sdk::Options&) : MemoryStorage(false) {}
  const void* get_extension(const char* id) { return probe_extension<PoisonStorage>(id); }
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    MemoryStorage::acquire(keys, mode, out);
    for (uint64_t i = 0; i < keys.size(); ++i)
      if (keys[i].needed && out[i].k) poison(keys[i], out[i]);
  }
  void release(std::span<const uint64_t> leases) {
    std::vector<uint64_t> ours(leases.begin(), leases.end());
    for (uint64_t& lease : ours) {
      const auto copy = copies_.find(lease);
      if (copy == copies_.end()) continue;
      lease = copy->second.of;
      copies_.erase(copy);
    }
    MemoryStorage::release(ours);
  }
  uint64_t probe(uint32_t item) { return item == 0 ? n_poisoned_ : n_leases(); }

 private:
  struct Copy {
    uint64_t of;  // the lease it stands for
    std::vector<float> k, v;
  };
  void poison(const kvasir_block_key& key, kvasir_lease& lease) {
    const uint64_t n =
        uint64_t{key.kv_head == KVASIR_ALL_HEADS ? g_.n_kv_heads : 1} * g_.block_size;
    Copy copy{lease.lease, {}, {}};
    for (const auto& [from, to, dim] :
         {std::tuple{lease.k, &copy.k, g_.head_dim}, std::tuple{lease.v, &copy.v, g_.v_dim}}) {
      const auto* floats = static_cast<const float*>(from);
      to->assign(n * dim, std::numeric_limits<float>::quiet_NaN());
      for (uint64_t i = 0; i < n; ++i)
        if (key.needed[i / 64] >> (i % 64) & 1)
          std::copy_n(floats + i * dim, dim, to->data() + i * dim);
    }
    lease.lease = kFirst + ++n_poisoned_;
    Copy& kept = copies_[lease.lease] = std::move(copy);
    lease.k = kept.k.data();
    lease.v = kept.v.data();
    lease.state = KVASIR_LEASE_PARTIAL;
  }

  static constexpr uint64_t kFirst = uint64_t{1} << 40;
  std::map<uint64_t, Copy> copies_;
  uint64_t n_poisoned_ = 0;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.poison_storage", "0.1.0", PoisonStorage)
