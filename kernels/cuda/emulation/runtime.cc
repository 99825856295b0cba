// The runtime of the emulated device: everything that is not recorded is done when the call
// returns, but for copies from and to pinned memory, which any stream's wait ends.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime.h"

#include <cstring>

#include "kernels/cuda/emulation/capture.h"
#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/emulation/hopper.h"
#include "kernels/cuda/emulation/memory.h"
#include "kernels/cuda/emulation/pinned.h"

namespace kvasir::cuda {
namespace {

void check(const void* data, uint64_t bytes) {
  emulation::Region* region = emulation::region_of(data);
  if (!region)
    throw emulation::Fault(emulation::FaultKind::kBounds, "a copy from or to no allocation");
  region->check(data, bytes, 1, emulation::Touch::kRead);
}

}  // namespace

std::string device_problem() { return ""; }
std::atomic<bool>& emulation::has_hopper() {
  static std::atomic<bool> has{true};
  return has;
}
void emulation::need_hopper() {
  if (!has_hopper()) throw Fault(FaultKind::kLaunch, hopper_problem());
}
std::string hopper_problem() {
  if (emulation::has_hopper()) return "";
  return "the instructions of Hopper need compute capability 9.0, the emulated device has 8.0";
}

MemoryState memory_state() { return {emulation::free_bytes(), emulation::memory_bytes()}; }

void wait(Stream stream) {
  emulation::refuse_capture(stream, "somebody waits");
  emulation::end_copies();
}

void* allocate_memory(uint64_t bytes) {
  emulation::refuse_in_capture("memory is allocated");
  void* data = emulation::allocate(bytes);
  if (!data) throw Error("CUDA cannot allocate device memory: out of memory", true);
  return data;
}
void free_memory(void* data) noexcept {
  if (data) emulation::refuse_in_capture("memory is freed");
  emulation::release(data);
}
bool is_device_memory(const void* data) { return emulation::region_of(data) != nullptr; }

bool pin_memory(void* data, uint64_t bytes) {
  emulation::pin(data, bytes);
  return true;
}
void unpin_memory(void* data) noexcept { emulation::unpin(data); }

void copy_to_device(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const bool is_pinned = emulation::is_pinned(from, bytes);
  if (!is_pinned) emulation::refuse_capture(stream, "memory that is not pinned is copied");
  emulation::give(stream, [=] {
    check(to, bytes);
    std::memcpy(to, from, bytes);
    if (is_pinned) emulation::begin_copy_from(from, bytes);
  });
}
void copy_to_host(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const bool is_pinned = emulation::is_pinned(to, bytes);
  if (!is_pinned) emulation::refuse_capture(stream, "memory that is not pinned is copied");
  emulation::give(stream, [=] {
    check(from, bytes);
    if (is_pinned)
      emulation::begin_copy_to(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  });
}
void copy_on_device(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  emulation::give(stream, [=] {
    check(from, bytes);
    check(to, bytes);
    std::memcpy(to, from, bytes);
  });
}
void fill_memory(void* data, uint8_t byte, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  emulation::give(stream, [=] {
    check(data, bytes);
    std::memset(data, byte, bytes);
  });
}

}  // namespace kvasir::cuda
