// libFuzzer over the GGUF reader: any bytes give a file or an Error; whatever opens can be walked,
// described, copied, hashed and dequantised without leaving the bytes. Seeds: small files with
// every value type, tensor type and shape rank.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/model/gguf/gguf.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/temp_dir.h"

using namespace kvasir;

namespace {

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

void set_metadata(GgufWriter& writer) {
  writer.set("general.architecture", std::string("llama"));
  writer.set("general.alignment", uint32_t{32});
  writer.set("a.bool", true);
  writer.set("a.i32", int32_t{-1});
  writer.set("a.u64", uint64_t{1} << 40);
  writer.set("a.f32", 1e-5f);
  writer.set("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "a", "\xC4\xA0the"});
  writer.set("tokenizer.ggml.scores", std::vector<float>{0.0f, -1.0f, 2.0f});
  writer.set("tokenizer.ggml.token_type", std::vector<int32_t>{3, 1, 1});
  // What the writer has no type for: u8, i8, u16, i16, i64, f64, an array of arrays, of bools.
  writer.set("b.u8", GgufRaw{0, std::string(1, '\7')});
  writer.set("b.i8", GgufRaw{1, std::string(1, '\7')});
  writer.set("b.u16", GgufRaw{2, std::string(2, '\7')});
  writer.set("b.i16", GgufRaw{3, std::string(2, '\7')});
  writer.set("b.i64", GgufRaw{11, std::string(8, '\7')});
  writer.set("b.f64", GgufRaw{12, std::string(8, '\7')});
  const std::string zeros(7, '\0');
  const std::string bools = std::string("\7\0\0\0\2", 5) + zeros + std::string("\0\1", 2);
  writer.set("b.bools", GgufRaw{9, bools});
  writer.set("b.nested", GgufRaw{9, std::string("\11\0\0\0\1", 5) + zeros + bools});
  writer.set("split.count", uint32_t{1});
}

fuzz::Seed written(const GgufWriter& writer, const std::string& name) {
  const test::TempDir dir;
  writer.write(dir.path(name), [](size_t index, std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(17 * i + index);
  });
  return {name, test::read_bytes(dir.path(name))};
}

}  // namespace

std::vector<fuzz::Seed> fuzz::seeds() {
  GgufWriter vocabulary, ranks;
  set_metadata(vocabulary);
  for (uint64_t rank = 1; rank <= 4; ++rank) {
    std::vector<uint64_t> shape(rank, 2);
    shape[0] = 32;
    ranks.add_tensor("rank" + std::to_string(rank), GgmlType::kQ4_0, shape);
  }
  std::vector<Seed> out{written(vocabulary, "vocabulary"), written(ranks, "ranks")};
  for (uint32_t number = 0; number < 40; ++number) {
    const auto type = static_cast<GgmlType>(number);
    if (block_elements(type) == 0) continue;
    GgufWriter one;
    one.set("general.architecture", std::string("qwen2"));
    one.add_tensor("blk.0.attn_q.weight", type, {block_elements(type)});
    out.push_back(written(one, name(type)));
  }
  return out;
}

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
