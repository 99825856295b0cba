// Memory, copies and streams by the CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

#include "kernels/cuda/nvcc/launch_checks.h"

namespace kvasir::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string("CUDA cannot ") + what + ": " + cudaGetErrorString(status),
              status == cudaErrorMemoryAllocation);
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

thread_local bool is_capturing = false;
std::atomic<uint64_t> n_kernels{0}, n_graphs{0};

cudaGraph_t end(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  is_capturing = false;
  if (cudaStreamEndCapture(native(stream), &graph) == cudaSuccess) return graph;
  cudaGetLastError();  // not the next call's
  return nullptr;
}

}  // namespace

std::string device_problem() {
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice || n_devices == 0) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return driver == 0
               ? "no NVIDIA driver is installed on this machine: install one, or do without "
                 "a GPU ([attention] plugin = \"cpu\", -ngl 0)"
               : "the NVIDIA driver finds no device that this build can use: see "
                 "nvidia-smi, or do without a GPU ([attention] plugin = \"cpu\", -ngl 0)";
  }
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

MemoryState memory_state() {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "say how much memory is free");
  return {free_bytes, total_bytes};
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
  return {stream};
}
void destroy_stream(Stream stream) noexcept {
  if (stream.handle) cudaStreamDestroy(native(stream));
}
void wait(Stream stream) { check(cudaStreamSynchronize(native(stream)), "finish its work"); }

void* allocate_memory(uint64_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocate device memory");
  return data;
}
void free_memory(void* data) noexcept { cudaFree(data); }
bool is_device_memory(const void* data) {
  cudaPointerAttributes of{};
  int device = 0;
  if (cudaPointerGetAttributes(&of, data) != cudaSuccess) {
    cudaGetLastError();  // not the next call's
    return false;
  }
  check(cudaGetDevice(&device), "name its device");
  return of.type == cudaMemoryTypeDevice && of.device == device;
}

bool pin_memory(void* data, uint64_t bytes) {
  if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
  cudaGetLastError();  // not the next call's
  return false;
}
void unpin_memory(void* data) noexcept {
  if (cudaHostUnregister(data) != cudaSuccess) cudaGetLastError();
}

void copy_to_device(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(stream)),
        "copy to the device");
}
void copy_to_host(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(stream)),
        "copy from the device");
}

void copy_on_device(void* to, const void* from, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)),
        "copy on the device");
}
void fill_memory(void* data, uint8_t byte, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(data, byte, bytes, native(stream)), "fill device memory");
}

void begin_capture(Stream stream) {
  check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
        "record a stream's work");
  is_capturing = true;
}
Graph end_capture(Stream stream) {
  const cudaGraph_t graph = end(stream);
  if (!graph) throw Error("CUDA cannot record work that was refused on the way", false);
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "make a graph of recorded work");
  return {made};
}
void abandon_capture(Stream stream) noexcept {
  if (const cudaGraph_t graph = end(stream)) cudaGraphDestroy(graph);
}
void launch_graph(Graph graph, Stream stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), native(stream)),
        "start a graph");
  ++n_graphs;
}
void destroy_graph(Graph graph) noexcept {
  if (graph.handle) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle));
}

Launches launches() { return {n_kernels, n_graphs}; }

void check_launch(cudaError_t status) {
  check(status, "start a kernel");
  if (!is_capturing) ++n_kernels;
}
void allow_shared(const void* kernel, uint32_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "give a kernel its shared memory");
}

}  // namespace kvasir::cuda
