// The runtime of the emulated device: everything that is neither recorded nor put off is done when
// the call returns, but for copies from and to pinned memory, which any stream's wait ends.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime.h"

#include <cstddef>
#include <cstring>
#include <vector>

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
  emulation::count_wait();
  emulation::finish(stream);
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
  if (data) emulation::finish_all();  // as cudaFree() does
  emulation::release(data);
}
bool is_device_memory(const void* data) { return emulation::region_of(data) != nullptr; }

bool pin_memory(void* data, uint64_t bytes) {
  emulation::pin(data, bytes);
  return true;
}
void unpin_memory(void* data) noexcept { emulation::unpin(data); }

// What is put off copies what was there when it was given, and ends at the wait, as pinned copies
// do.
void copy_to_device(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const bool is_pinned = emulation::is_pinned(from, bytes);
  if (!is_pinned) emulation::refuse_capture(stream, "memory that is not pinned is copied");
  if (!is_pinned && emulation::puts_off(stream)) {
    const auto* at = static_cast<const std::byte*>(from);
    emulation::give(stream, [to, taken = std::vector<std::byte>(at, at + bytes)] {
      check(to, taken.size());
      std::memcpy(to, taken.data(), taken.size());
    });
    return;
  }
  if (is_pinned && emulation::puts_off(stream)) emulation::begin_copy_from(from, bytes);
  emulation::give(stream, [=] {
    check(to, bytes);
    std::memcpy(to, from, bytes);
    if (is_pinned) emulation::begin_copy_from(from, bytes);
  });
}
void copy_to_host(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const bool is_pinned = emulation::is_pinned(to, bytes);
  if (!is_pinned) {
    emulation::refuse_capture(stream, "memory that is not pinned is copied");
    emulation::finish(stream);  // such a copy returns when it is done
  }
  emulation::give(stream, [=] {
    check(from, bytes);
    if (is_pinned)
      emulation::begin_copy_to(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  });
  if (!is_pinned) emulation::finish(stream);
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
