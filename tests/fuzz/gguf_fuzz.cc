// libFuzzer over the GGUF reader: any bytes give a file or an Error; whatever opens can be walked,
// described, copied, hashed and dequantised without leaving the bytes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/model/gguf/gguf.h"
#include "core/model/gguf/quant.h"

namespace {

using namespace kvasir;

template <class Fn>
void allow_error(Fn&& fn) {
  try {
    fn();
  } catch (const Error&) {
  }
}

template <class T>
void read_as(const GgufFile& file, std::string_view key) {
  allow_error([&] { (void)file.get<T>(key); });
  allow_error([&] { (void)file.get_array<T>(key); });
}

void walk_metadata(const GgufFile& file) {
  for (const std::string& key : file.keys()) {
    (void)file.describe(key);
    (void)file.raw(key);
    read_as<bool>(file, key);
    read_as<uint32_t>(file, key);
    read_as<int32_t>(file, key);
    read_as<uint64_t>(file, key);
    read_as<float>(file, key);
    read_as<std::string_view>(file, key);
  }
}

void walk_tensors(const GgufFile& file) {
  constexpr uint64_t kMaxElements = 4096;  // a multiple of every block
  std::vector<float> values(kMaxElements);
  for (const GgufTensor& tensor : file.tensors()) {
    allow_error([&] { (void)file.tensor(tensor.name); });
    allow_error([&] {
      dequantize(tensor.type, tensor.data, values.data(),
                 std::min(kMaxElements, tensor.n_elements));
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_error([&] {
    const GgufFile file =
        GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz.gguf");
    walk_metadata(file);
    walk_tensors(file);
    (void)file.content_hash();
  });
  return 0;
}
