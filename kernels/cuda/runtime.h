// What the host's side asks of a device: memory, copies, streams, launches. The same functions
// stand on the CUDA runtime and on the emulation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvasir::cuda {

// A call that the device, its driver or its runtime refused.
class Error : public std::runtime_error {
 public:
  Error(const std::string& text, bool is_out_of_memory)
      : std::runtime_error(text), is_out_of_memory_(is_out_of_memory) {}
  bool is_out_of_memory() const { return is_out_of_memory_; }

 private:
  bool is_out_of_memory_;
};

// Why no device can be used, as a sentence that says what to do; empty when one can.
std::string device_problem();

struct MemoryState {
  uint64_t free_bytes, total_bytes;
};
MemoryState memory_state();  // of the device, at this moment

// Work of one stream runs in the order in which it was given. Opaque; cudaStream_t.
struct Stream {
  void* handle = nullptr;  // null: the default stream
};
Stream make_stream();
void destroy_stream(Stream stream) noexcept;
void wait(Stream stream);  // for all it was given; throws what failed since

// Device memory, aligned to 256 bytes. Contents are undefined.
void* allocate_memory(uint64_t bytes);
void free_memory(void* data) noexcept;
// Whether the address lies in memory of this device, whoever in the process allocated it.
bool is_device_memory(const void* data);

// Pins memory of the host, which copies then neither wait for nor bring through other memory;
// false: it cannot be pinned, and is copied all the same. What copies read of it must not change
// before wait().
bool pin_memory(void* data, uint64_t bytes);
void unpin_memory(void* data) noexcept;  // what was pinned; does nothing where that failed

// Queued in the stream. Bytes of host memory that is not pinned are taken before the call returns;
// what goes to the host is there after wait().
void copy_to_device(void* to, const void* from, uint64_t bytes, Stream stream);
void copy_to_host(void* to, const void* from, uint64_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, uint64_t bytes, Stream stream);  // do not overlap
void fill_memory(void* data, uint8_t byte, uint64_t bytes, Stream stream);
inline void zero_memory(void* data, uint64_t bytes, Stream stream) {
  fill_memory(data, 0, bytes, stream);
}

}  // namespace kvasir::cuda
