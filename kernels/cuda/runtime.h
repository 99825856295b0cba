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
// Why kernels may not use what devices of compute capability 9.0 have alone, as half a sentence;
// empty where they may.
std::string hopper_problem();

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

// What a stream is given between begin_capture() and end_capture() does not run: it is recorded, to
// be started as a whole as often as is wanted, with the same addresses and numbers. Kernels, fills,
// copies on the device, and copies from and to pinned memory, which use it anew each time. Copies
// of other memory of the host are refused, and that the thread waits for the stream, allocates or
// frees meanwhile; what was refused once can only be abandoned. Not of the default stream.
struct Graph {
  void* handle = nullptr;  // opaque; cudaGraphExec_t
};
void begin_capture(Stream stream);
Graph end_capture(Stream stream);
void abandon_capture(Stream stream) noexcept;
void launch_graph(Graph graph, Stream stream);
void destroy_graph(Graph graph) noexcept;  // none of its launches is under way

// What this process has started so far: kernels one by one (not those of cuBLAS), and graphs.
struct Launches {
  uint64_t kernels = 0, graphs = 0;
};
Launches launches();

}  // namespace kvasir::cuda
