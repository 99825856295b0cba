// The CPUs the calling thread may run on, and what it could run on before we bound it to one core.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

// One bit per CPU as the kernel numbers them, 64 to a word.
class CpuMask {
 public:
  explicit CpuMask(size_t n_words = 0) : words_(n_words) {}
  bool test(uint32_t cpu) const;
  uint32_t count() const;
  bool operator==(const CpuMask&) const = default;

  std::vector<uint64_t>& words() { return words_; }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

// The calling thread's mask; empty when the kernel will not say.
CpuMask thread_affinity();

// As thread_affinity(), but a thread that Topology::bind_this_thread put on one core still answers
// with the mask it had before: a second detect() must not see a machine of one core.
CpuMask thread_affinity_before_binding();

// Called before a binding; the first one since the last restore is the one that counts.
void remember_thread_affinity();

// Gives the calling thread this mask back. An empty mask changes nothing.
void restore_thread_affinity(const CpuMask& mask);

// For its life the calling thread, where it is bound, may run on what it could before: threads that
// it starts inherit that.
class OnAllCores {
 public:
  OnAllCores();
  ~OnAllCores();
  OnAllCores(const OnAllCores&) = delete;
  OnAllCores& operator=(const OnAllCores&) = delete;

 private:
  CpuMask bound_;  // empty: it was not bound
};

}  // namespace kvasir
