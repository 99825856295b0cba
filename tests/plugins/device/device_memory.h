// Memory of a device that does not exist: pages that nobody can touch, except while a call of one
// of the device plugins runs. One library of its own, so that the plugins share it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace kvasir::test {

class __attribute__((visibility("default"))) DeviceMemory {
 public:
  static DeviceMemory& instance();

  // Its pages can be touched while one of these lives, by all threads: counted, not nested.
  class __attribute__((visibility("default"))) Access {
   public:
    Access();
    ~Access();
    Access(const Access&) = delete;
  };

  void* alloc(uint64_t bytes);  // 64-byte aligned, filled with NaN
  void free(void* data);
  bool holds(const void* data, uint64_t bytes) const;

  uint64_t begin() const { return reinterpret_cast<uint64_t>(begin_); }
  uint64_t size() const;
  uint64_t n_allocated() const;

 private:
  DeviceMemory();
  void protect(bool is_open) const;

  mutable std::mutex mutex_;
  std::byte* begin_;
  uint64_t used_ = 0, n_open_ = 0;
  std::map<uint64_t, std::vector<void*>> free_;  // by size
  std::map<void*, uint64_t> allocated_;          // sizes
};

inline constexpr uint32_t kDeviceOnly = KVASIR_MEM_BIT(KVASIR_MEM_DEVICE);

// The same view as seen by a plugin that believes this memory is the host's; the other kind of
// memory, or other pages than ours, are a defect of whoever hands them over.
inline kvasir_view inside(const kvasir_view& view, const char* what) {
  if (view.rank == 0) return view;
  if (view.mem_kind != KVASIR_MEM_DEVICE || !DeviceMemory::instance().holds(view.data, 1))
    sdk::fail_invalid(std::string(what) + " does not lie on the device");
  kvasir_view out = view;
  out.mem_kind = KVASIR_MEM_HOST;
  return out;
}
inline void check_lease(const kvasir_lease& lease) {
  if (!lease.k && !lease.v) return;
  for (const void* data : {lease.k, lease.v})
    if (!DeviceMemory::instance().holds(data, 1))
      sdk::fail_invalid("a leased block does not lie on the device");
}

}  // namespace kvasir::test
