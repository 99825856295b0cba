// See safetensors.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/safetensors.h"

#include "core/platform/output_file.h"

namespace kvasir::tool {

SafetensorsWriter::SafetensorsWriter(const std::string& key, const std::string& metadata)
    : root_{{kSafetensorsMetadata, {{key, metadata}}}} {}

void SafetensorsWriter::add(const std::string& name, const std::string& dtype,
                            const std::vector<uint64_t>& shape, const void* data, uint64_t bytes) {
  root_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end_, end_ + bytes}}};
  tensors_.push_back({data, bytes});
  end_ += bytes;
}

void SafetensorsWriter::write(const std::string& path) const {
  std::string text = root_.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors begin at a multiple of 8
  OutputFile out(path, {.flag = "-o "});
  const uint64_t length = text.size();
  out.write(&length, sizeof(length));
  out.write(text.data(), text.size());
  for (const Data& tensor : tensors_) out.write(tensor.data, tensor.bytes);
  out.finish();
}

}  // namespace kvasir::tool
