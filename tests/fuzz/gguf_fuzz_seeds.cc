// Writes the seeds of gguf_fuzz into the folder named: small files with every value type, tensor
// type and shape rank.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"

namespace {

using namespace kvasir;
namespace fs = std::filesystem;

void fill(size_t index, std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(17 * i + index);
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

void write_seeds(const fs::path& folder) {
  fs::create_directories(folder);
  GgufWriter vocabulary;
  set_metadata(vocabulary);
  vocabulary.write(folder / "vocabulary.gguf", fill);

  GgufWriter ranks;
  for (uint64_t rank = 1; rank <= 4; ++rank) {
    std::vector<uint64_t> shape(rank, 2);
    shape[0] = 32;
    ranks.add_tensor("rank" + std::to_string(rank), GgmlType::kQ4_0, shape);
  }
  ranks.write(folder / "ranks.gguf", fill);

  for (uint32_t number = 0; number < 40; ++number) {
    const auto type = static_cast<GgmlType>(number);
    if (block_elements(type) == 0) continue;
    GgufWriter one;
    one.set("general.architecture", std::string("qwen2"));
    one.add_tensor("blk.0.attn_q.weight", type, {block_elements(type)});
    one.write(folder / (std::string(name(type)) + ".gguf"), fill);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gguf_fuzz_seeds <folder>\n");
    return 2;
  }
  try {
    write_seeds(argv[1]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gguf_fuzz_seeds: %s\n", e.what());
    return 1;
  }
}
