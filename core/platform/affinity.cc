// Thread affinity over sched_getaffinity, for any number of CPUs.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/affinity.h"

#include <sched.h>

#include <bit>
#include <cerrno>

namespace kvasir {
namespace {

constexpr size_t kMaxMaskWords = 1 << 14;  // a million CPUs: where the kernel's answer is nonsense

thread_local CpuMask mask_before_binding;

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
  if (mask.words().empty()) return;
  const auto* set = reinterpret_cast<const cpu_set_t*>(mask.words().data());
  if (sched_setaffinity(0, mask.words().size() * sizeof(uint64_t), set) != 0) return;
  if (mask == mask_before_binding) mask_before_binding = CpuMask();
}

}  // namespace kvasir
