// Copies between host and device; see memory_bridge.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/memory_bridge.h"

#include <algorithm>

namespace kvasir {
namespace {

// Of F32, U32 and U8.
int64_t element_bytes(uint32_t dtype) { return dtype == KVASIR_DTYPE_U8 ? 1 : 4; }

uint64_t bytes_of(const kvasir_view& view) {
  auto bytes = static_cast<uint64_t>(element_bytes(view.dtype));
  for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
  return bytes;
}

kvasir_view bytes_view(const void* data, uint64_t bytes, uint32_t mem_kind, int32_t device) {
  kvasir_view view = host_view(data, KVASIR_DTYPE_U8, {bytes});
  view.mem_kind = mem_kind;
  view.device = device;
  return view;
}

}  // namespace

kvasir_view host_view(const void* data, uint32_t dtype, std::initializer_list<uint64_t> shape) {
  kvasir_view view{};
  view.struct_size = sizeof(view);
  view.dtype = dtype;
  view.data = const_cast<void*>(data);  // NOLINT: inputs and outputs have one type
  view.mem_kind = KVASIR_MEM_HOST;
  for (const uint64_t n : shape) view.shape[view.rank++] = n;
  int64_t stride = element_bytes(dtype);
  for (uint32_t d = view.rank; d-- > 0; stride *= static_cast<int64_t>(view.shape[d]))
    view.stride[d] = stride;
  return view;
}

kvasir_view elements(kvasir_view of, uint64_t begin, uint64_t end) {
  of.data = static_cast<std::byte*>(of.data) + static_cast<int64_t>(begin) * of.stride[0];
  of.shape[0] = end - begin;
  return of;
}

kvasir_view MemoryBridge::view(bool on_device, const float* data,
                               std::initializer_list<uint64_t> shape) const {
  kvasir_view view = host_view(data, KVASIR_DTYPE_F32, shape);
  if (!on_device) return view;
  view.mem_kind = KVASIR_MEM_DEVICE;
  view.device = storage_.device();
  return view;
}

MemoryBridge::Buffer::~Buffer() {
  if (data_) owner_->storage_.device_free(data_);
}

// The buffer grows by half at least, so that sizes that grow step by step seldom allocate.
kvasir_view MemoryBridge::on_device(const kvasir_view& like, Buffer& hold) {
  const uint64_t bytes = std::max<uint64_t>(bytes_of(like), 64);
  if (hold.bytes_ < bytes) {
    const uint64_t grown = std::max(bytes, hold.bytes_ + hold.bytes_ / 2);
    if (hold.data_) storage_.device_free(hold.data_);
    hold.data_ = nullptr;
    hold.bytes_ = 0;
    hold.owner_ = this;
    hold.data_ = storage_.device_alloc(grown);
    hold.bytes_ = grown;
  }
  kvasir_view view = like;
  view.data = hold.data_;
  view.mem_kind = KVASIR_MEM_DEVICE;
  view.device = storage_.device();
  return view;
}

kvasir_view MemoryBridge::to_reader(const Instance& reader, const kvasir_view& from, Buffer& hold) {
  if (from.rank == 0 || !is_host_memory(from.mem_kind) || reader.reads(KVASIR_MEM_HOST))
    return from;
  const kvasir_view view = on_device(from, hold);
  if (bytes_of(from) == 0) return view;
  storage_.device_copy(view, from);
  copied_bytes_ += bytes_of(from);
  return view;
}

kvasir_view MemoryBridge::to_writer(const Instance& writer, const kvasir_view& into, Buffer& hold) {
  const bool writes_there = !is_host_memory(into.mem_kind) || writer.writes(KVASIR_MEM_HOST);
  return writes_there ? into : on_device(into, hold);
}

void MemoryBridge::from_writer(const kvasir_view& written, const kvasir_view& into, uint64_t begin,
                               uint64_t end) {
  if (written.data != into.data) copy(into, written, begin, end);
}

void MemoryBridge::copy(const kvasir_view& to, const kvasir_view& from, uint64_t begin,
                        uint64_t end) {
  if (begin >= end) return;
  const kvasir_view part = elements(from, begin, end);
  storage_.device_copy(elements(to, begin, end), part);
  copied_bytes_ += bytes_of(part);
}

void MemoryBridge::share_stream(const std::vector<const Instance*>& users) {
  may_share_ = may_share_ && storage_.has_streams() &&
               std::all_of(users.begin(), users.end(),
                           [](const Instance* user) { return user->uses_streams(); });
  if (!may_share_) {
    for (const Instance* user : users_) user->set_stream(0);
    users_.clear();
    return;
  }
  if (stream_ == 0) stream_ = storage_.make_stream();
  for (const Instance* user : users) {
    if (std::find(users_.begin(), users_.end(), user) != users_.end()) continue;
    user->set_stream(stream_);
    users_.push_back(user);
  }
}

std::vector<bool> MemoryBridge::fetch(const kvasir_view& to, const kvasir_view& from,
                                      const std::vector<kvasir_view>& of) {
  copied_bytes_ += bytes_of(from);
  return storage_.device_fetch(to, from, of);
}

std::shared_ptr<std::byte[]> MemoryBridge::new_page(uint64_t bytes) {
  std::shared_ptr<std::byte[]> page(static_cast<std::byte*>(storage_.device_alloc(bytes)),
                                    [this](std::byte* p) { storage_.device_free(p); });
  storage_.device_zero(page.get(), bytes);
  return page;
}

void MemoryBridge::copy_page(std::byte* to, const std::byte* from, uint64_t bytes) {
  storage_.device_copy(bytes_view(to, bytes, KVASIR_MEM_DEVICE, storage_.device()),
                       bytes_view(from, bytes, KVASIR_MEM_DEVICE, storage_.device()));
}

void MemoryBridge::clear(std::byte* at, uint64_t bytes) { storage_.device_zero(at, bytes); }

void MemoryBridge::save_page(std::span<std::byte> to, const std::byte* from) {
  storage_.device_copy(bytes_view(to.data(), to.size(), KVASIR_MEM_HOST, 0),
                       bytes_view(from, to.size(), KVASIR_MEM_DEVICE, storage_.device()));
  copied_bytes_ += to.size();
}

void MemoryBridge::load_page(std::byte* to, std::span<const std::byte> from) {
  storage_.device_copy(bytes_view(to, from.size(), KVASIR_MEM_DEVICE, storage_.device()),
                       bytes_view(from.data(), from.size(), KVASIR_MEM_HOST, 0));
  copied_bytes_ += from.size();
}

}  // namespace kvasir
