// Streams of a device: kvasir.stream/1 and kvasir.stream-user/1.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"

namespace kvasir {
namespace {

template <class Table>
bool is_whole(const Table* table, size_t bytes) {
  return table && table->struct_size >= bytes;
}

}  // namespace

bool Instance::uses_streams() const {
  const auto* t = static_cast<const kvasir_stream_user*>(extension(KVASIR_EXT_STREAM_USER));
  return is_whole(t, sizeof *t) && t->set_stream;
}

void Instance::set_stream(kvasir_stream_handle stream) const {
  require(uses_streams(), KVASIR_EXT_STREAM_USER);
  const auto* t = static_cast<const kvasir_stream_user*>(extension(KVASIR_EXT_STREAM_USER));
  control_call("set_stream",
               [&](kvasir_err* err) { return t->set_stream(base().self, stream, err); });
}

bool Storage::has_streams() const {
  const auto* t = static_cast<const kvasir_stream*>(extension(KVASIR_EXT_STREAM));
  return is_whole(t, sizeof *t) && t->create;
}

kvasir_stream_handle Storage::make_stream() const {
  require(has_streams(), KVASIR_EXT_STREAM);
  const auto* t = static_cast<const kvasir_stream*>(extension(KVASIR_EXT_STREAM));
  kvasir_stream_handle stream = 0;
  control_call("create", [&](kvasir_err* err) { return t->create(base().self, &stream, err); });
  if (stream == 0) defect("create", "it succeeded without a stream");
  return stream;
}

}  // namespace kvasir
