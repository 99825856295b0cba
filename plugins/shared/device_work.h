// The stream that a plugin gives its work to: one of its own, whose work ends with each call, or
// the host's (kvasir.stream-user/1), where it goes on. For plugins that link kvasir::cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/stream.h>
#include <kvasir/sdk/plugin.h>

#include <string_view>

#include "plugins/shared/device_buffer.h"

namespace kvasir::sdk {

class DeviceWork {
 public:
  DeviceWork() = default;
  ~DeviceWork() { cuda::destroy_stream(own_); }
  DeviceWork(const DeviceWork&) = delete;

  void open() {
    on_device([&] { own_ = cuda::make_stream(); });
  }
  // 0: its own again.
  void lend(kvasir_stream_handle stream) {
    on_device([&] { cuda::wait(this->stream()); });
    lent_.handle = reinterpret_cast<void*>(stream);
  }
  cuda::Stream stream() const { return lent_.handle ? lent_ : own_; }
  bool is_lent() const { return lent_.handle != nullptr; }

  // What fn() starts goes on after this call where the stream is lent.
  template <class Fn>
  void run(Fn&& fn) const {
    if (!is_lent()) return run_to_end(stream(), fn);
    run_on(stream(), fn);
  }

 private:
  cuda::Stream own_, lent_;
};

// kvasir.stream-user/1 of a class with lend_stream().
template <class T>
const kvasir_stream_user* stream_user_table() {
  using detail::as;
  static constexpr kvasir_stream_user kTable = {
      sizeof(kvasir_stream_user), 0,
      [](void* self, kvasir_stream_handle stream, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).lend_stream(stream); });
      }};
  return &kTable;
}

// The same as the answer of get_extension().
template <class T>
const void* stream_extension(const char* id) {
  return std::string_view(id) == KVASIR_EXT_STREAM_USER ? stream_user_table<T>() : nullptr;
}

}  // namespace kvasir::sdk
