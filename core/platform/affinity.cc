// Thread affinity over sched_getaffinity, for any number of CPUs.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/affinity.h"

#include <sched.h>

#include <bit>
#include <cerrno>
#include <utility>

namespace kvasir {
namespace {

constexpr size_t kMaxMaskWords = 1 << 14;  // a million CPUs: where the kernel's answer is nonsense

thread_local CpuMask mask_before_binding;

// False: the kernel refused, or the mask is empty.
bool set_affinity(const CpuMask& mask) {
  if (mask.words().empty()) return false;
  const auto* set = reinterpret_cast<const cpu_set_t*>(mask.words().data());
  return sched_setaffinity(0, mask.words().size() * sizeof(uint64_t), set) == 0;
}

}  // namespace

bool CpuMask::test(uint32_t cpu) const {
  const size_t word = cpu / 64;
  return word < words_.size() && (words_[word] >> (cpu % 64) & 1) != 0;
}

uint32_t CpuMask::count() const {
  uint32_t n = 0;
  for (const uint64_t word : words_) n += static_cast<uint32_t>(std::popcount(word));
  return n;
}

CpuMask thread_affinity() {
  // EINVAL means that the kernel's own mask is longer than the buffer.
  for (size_t n_words = 16; n_words <= kMaxMaskWords; n_words *= 2) {
    CpuMask mask(n_words);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.words().data());
    if (sched_getaffinity(0, n_words * sizeof(uint64_t), set) == 0) return mask;
    if (errno != EINVAL) break;
  }
  return CpuMask();
}

CpuMask thread_affinity_before_binding() {
  return mask_before_binding.words().empty() ? thread_affinity() : mask_before_binding;
}

void remember_thread_affinity() {
  if (mask_before_binding.words().empty()) mask_before_binding = thread_affinity();
}

void restore_thread_affinity(const CpuMask& mask) {
  if (set_affinity(mask) && mask == mask_before_binding) mask_before_binding = CpuMask();
}

OnAllCores::OnAllCores() {
  if (mask_before_binding.words().empty()) return;
  CpuMask bound = thread_affinity();
  if (set_affinity(mask_before_binding)) bound_ = std::move(bound);
}

OnAllCores::~OnAllCores() { set_affinity(bound_); }

}  // namespace kvasir
