// The GGUF reader and writer: round trip, every kind of damage, real files.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/gguf.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"
#include "tests/core/model/gguf_bytes.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;
using test::Bytes;
using test::read_bytes;
using test::TempDir;
namespace fs = std::filesystem;

GgufFile parse(const std::string& bytes) {
  return GgufFile::parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.gguf");
}

// What the Error says; empty when nothing was thrown.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::kInput);
    return e.what();
  }
  return "";
}

std::string parse_error(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Checks that `text` has `part` in it, and shows it when not.
void check_says(const std::string& text, const std::string& part) {
  CHECK_MESSAGE(contains(text, part), "\"", part, "\" is not in: ", text);
}

// Uses everything an opened file offers; what is damaged may throw Error, nothing else.
void walk(const GgufFile& file) {
  for (const std::string& key : file.keys()) {
    (void)file.describe(key);
    error_of([&] { (void)file.get<uint64_t>(key); });
    error_of([&] { (void)file.get_array<std::string_view>(key); });
  }
  for (const GgufTensor& tensor : file.tensors()) {
    std::vector<float> values(tensor.n_elements);
    error_of([&] { dequantize(tensor.type, tensor.data, values.data(), values.size()); });
  }
  (void)file.content_hash();
}

GgufWriter small_writer() {
  GgufWriter writer;
  writer.set("general.architecture", std::string("llama"));
  writer.set("a.flag", true);
  writer.set("a.big", uint64_t{1} << 40);
  writer.set("a.negative", int32_t{-3});
  writer.set("a.real", 2.5f);
  writer.set("a.words", std::vector<std::string>{"one", "", "three\n"});
  writer.set("a.reals", std::vector<float>{1.0f, -2.0f});
  writer.set("a.ints", std::vector<int32_t>{7, -8, 9});
  writer.add_tensor("w", GgmlType::kF32, {3, 2});
  writer.add_tensor("q", GgmlType::kQ8_0, {64, 1, 2});
  return writer;
}

// Tensor data: byte i of tensor t is t + i.
void fill_counting(size_t tensor, std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(tensor + i);
}

std::string small_file() {
  const TempDir folder;
  small_writer().write(folder.path("small.gguf"), fill_counting);
  return read_bytes(folder.path("small.gguf"));
}

// The head of a file with no metadata and one F32 tensor of the shape.
Bytes one_tensor(const std::vector<uint64_t>& shape, uint32_t type = 0, uint64_t offset = 0) {
  Bytes b = test::gguf_head(3, 1, 0);
  b.text("t").u32(static_cast<uint32_t>(shape.size()));
  for (const uint64_t n : shape) b.u64(n);
  return b.u32(type).u64(offset);
}

}  // namespace

TEST_SUITE("core/model/gguf") {
  TEST_CASE("what the writer writes the reader gives back") {
    const TempDir folder;
    const std::string path = folder.path("small.gguf");
    small_writer().write(path, fill_counting);
    const GgufFile file = GgufFile::open(path);
    CHECK(file.path() == path);
    CHECK(file.version() == 3);
    CHECK(file.file_bytes() == fs::file_size(path));
    CHECK(file.keys() == std::vector<std::string>{"general.architecture", "a.flag", "a.big",
                                                  "a.negative", "a.real", "a.words", "a.reals",
                                                  "a.ints"});
    CHECK(file.get<std::string_view>("general.architecture") == "llama");
    CHECK(file.get<bool>("a.flag") == true);
    CHECK(file.get<uint64_t>("a.big") == uint64_t{1} << 40);
    CHECK(file.get<int32_t>("a.negative") == -3);
    CHECK(file.get<float>("a.real") == 2.5f);
    CHECK(file.get_array<std::string_view>("a.words") ==
          std::vector<std::string_view>{"one", "", "three\n"});
    CHECK(file.get_array<float>("a.reals") == std::vector<float>{1.0f, -2.0f});
    CHECK(file.get_array<int32_t>("a.ints") == std::vector<int32_t>{7, -8, 9});

    REQUIRE(file.tensors().size() == 2);
    const GgufTensor& w = file.tensor("w");
    CHECK(w.shape == std::vector<uint64_t>{3, 2});
    CHECK(w.n_elements == 6);
    CHECK(w.n_bytes == 24);
    const GgufTensor& q = file.tensor("q");
    CHECK(q.type == GgmlType::kQ8_0);
    CHECK(q.n_bytes == 4 * 34);
    CHECK(reinterpret_cast<uintptr_t>(q.data) % 32 == 0);
    for (size_t i = 0; i < q.n_bytes; ++i) REQUIRE(q.data[i] == static_cast<std::byte>(1 + i));
  }

  TEST_CASE("a key set twice keeps its last value, a raw value is copied as it is") {
    const TempDir folder;
    GgufWriter first;
    first.set("k", uint32_t{1});
    first.set("k", uint32_t{2});
    first.set("f64", GgufRaw{12, std::string(8, '\0')});
    first.set("list", std::vector<std::string>{"a", "bc"});
    first.write(folder.path("a.gguf"), {});
    const GgufFile a = GgufFile::open(folder.path("a.gguf"));
    CHECK(a.get<uint32_t>("k") == 2u);
    GgufWriter second;
    for (const std::string& key : a.keys()) second.set(key, *a.raw(key));
    second.write(folder.path("b.gguf"), {});
    CHECK(read_bytes(folder.path("a.gguf")) == read_bytes(folder.path("b.gguf")));
    CHECK_FALSE(a.raw("absent").has_value());
  }

  TEST_CASE("numbers convert where the value fits, and nothing else does") {
    Bytes b = test::gguf_head(3, 0, 5);
    b.text("u8").u32(0).u8(200);
    b.text("i64").u32(11).u64(static_cast<uint64_t>(-5));
    b.text("f64").u32(12).f64(0.5);
    b.text("pad").u32(4).u32(4294967295u);
    b.text("s").u32(8).text("x");
    const std::string bytes = b.str();
    const GgufFile file = parse(bytes);
    CHECK(file.get<uint32_t>("u8") == 200u);
    CHECK(file.get<float>("u8") == 200.0f);
    CHECK(file.get<int32_t>("i64") == -5);
    CHECK(file.get<float>("f64") == 0.5f);
    CHECK(file.get<uint32_t>("pad") == 4294967295u);
    CHECK(file.get_or<uint32_t>("absent", 7) == 7u);
    CHECK_FALSE(file.get_array<float>("absent").has_value());
    check_says(error_of([&] { (void)file.get<uint32_t>("i64"); }), "\"i64\" must be an unsigned");
    check_says(error_of([&] { (void)file.get<int32_t>("pad"); }), "4294967295 (u32)");
    check_says(error_of([&] { (void)file.get<uint32_t>("f64"); }), "0.5 (f64)");
    check_says(error_of([&] { (void)file.get<bool>("u8"); }), "must be a bool");
    check_says(error_of([&] { (void)file.get<float>("s"); }), "\"x\" (string)");
    check_says(error_of([&] { (void)file.get_array<float>("u8"); }), "an array");
    check_says(error_of([&] { (void)file.require<float>("absent"); }),
               "no metadata key \"absent\"");
    check_says(error_of([&] { (void)file.tensor("absent"); }), "no tensor \"absent\"");
    CHECK(file.find_tensor("absent") == nullptr);
  }

  TEST_CASE("values are described in short") {
    const std::string bytes = small_file();
    const GgufFile file = parse(bytes);
    CHECK(file.describe("a.flag") == "true");
    CHECK(file.describe("a.negative") == "-3");
    CHECK(file.describe("a.real") == "2.5");
    CHECK(file.describe("a.words") == R"(3 x string ["one", "", "three\x0a"])");
    CHECK(file.describe("a.ints") == "3 x i32 [7, -8, 9]");
  }

  TEST_CASE("version 2 is read like version 3, and a vocabulary has no tensors") {
    Bytes b = test::gguf_head(2, 0, 1);
    b.text("k").u32(4).u32(5);
    const std::string bytes = b.str();
    const GgufFile file = parse(bytes);
    CHECK(file.version() == 2);
    CHECK(file.get<uint32_t>("k") == 5u);
    CHECK(file.tensors().empty());
  }

  TEST_CASE("arrays nest to a limit") {
    const auto nested = [](int depth) {
      Bytes b = test::gguf_head(3, 0, 1);
      b.text("k").u32(9);
      for (int i = 1; i < depth; ++i) b.u32(9).u64(1);
      return b.u32(0).u64(2).u8(1).u8(2).str();
    };
    const std::string four = nested(4);
    CHECK(parse(four).has("k"));
    check_says(parse_error(nested(5)), "nests arrays deeper than 4");
    check_says(parse_error(nested(100000)), "nests arrays deeper than 4");
  }

  TEST_CASE("a file that cannot be opened is named with the reason") {
    const TempDir folder;
    const std::string missing = folder.path("missing.gguf");
    CHECK(error_of([&] { GgufFile::open(missing); }) ==
          missing + ": no such file; check the path of the model");
    check_says(error_of([&] { GgufFile::open(folder.root().string()); }), "is a folder");
    folder.write("empty.gguf", "");
    check_says(error_of([&] { GgufFile::open(folder.path("empty.gguf")); }), "is empty (0 bytes)");
  }

  TEST_CASE("a foreign file is told apart by how it begins") {
    check_says(parse_error("PK\x03\x04 and so on"), "a zip archive");
    check_says(parse_error("version https://git-lfs.github.com/spec/v1"), "Git LFS pointer");
    check_says(parse_error("<!DOCTYPE html>"), "a web page");
    check_says(parse_error("tjgg"), "begins with \"tjgg\" (a ggml file older than GGUF");
    check_says(parse_error(Bytes().u64(100).str() + "{\"a\": 1}"), "safetensors");
    check_says(parse_error("GGU"), "begins with \"GGU\"");
    check_says(parse_error(""), "begins with \"\"");
  }

  TEST_CASE("other versions and byte orders are refused by name") {
    check_says(parse_error(test::gguf_head(1, 0, 0).str()), "version 1 is no longer read");
    check_says(parse_error(test::gguf_head(4, 0, 0).str()), "version 4 is not supported");
    check_says(parse_error(test::gguf_head(0, 0, 0).str()), "version 0 is not supported");
    check_says(parse_error(test::gguf_head(0x03000000, 0, 0).str()), "big-endian");
  }

  TEST_CASE("cut anywhere, the file is refused with the bytes needed and found") {
    const std::string whole = small_file();
    CHECK(parse_error(whole).empty());
    // The last tensor's data ends 24 bytes (padding of 136 to 160) before the end of the file.
    for (size_t n = 4; n < whole.size() - 24; ++n) {
      const std::string said = parse_error(whole.substr(0, n));
      REQUIRE_MESSAGE(contains(said, "truncated or damaged"), "at ", n, " said: ", said);
      REQUIRE(contains(said, "the file has " + std::to_string(n) + " bytes"));
    }
    check_says(parse_error(whole.substr(0, whole.size() - 25)),
               "tensor \"q\" ends at byte " + std::to_string(whole.size() - 24));
  }

  TEST_CASE("a vocabulary cut anywhere is refused") {
    const TempDir folder;
    GgufWriter writer;
    writer.set("tokens", std::vector<std::string>{"one", "", "three"});
    writer.set("flag", true);
    writer.write(folder.path("v.gguf"), {});
    const std::string whole = read_bytes(folder.path("v.gguf"));
    CHECK(parse_error(whole).empty());
    for (size_t n = 0; n < whole.size(); ++n) {
      const std::vector<char> cut(whole.begin(), whole.begin() + n);  // nothing readable behind it
      const auto bytes = std::as_bytes(std::span(cut));
      REQUIRE_FALSE(error_of([&] { GgufFile::parse(bytes, "x.gguf"); }).empty());
    }
  }

  TEST_CASE("any flipped bit gives a file that can be walked, or an Error") {
    std::string bytes = small_file();
    size_t n_refused = 0;
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      n_refused += !error_of([&] { walk(parse(bytes)); }).empty();
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
    CHECK(n_refused > 500);
  }

  TEST_CASE("random damage gives a file that can be walked, or an Error") {
    const std::string whole = small_file();
    std::mt19937 rng(3);
    for (int round = 0; round < 3000; ++round) {
      std::string bytes = whole;
      for (int i = 0; i < 4; ++i) {
        const size_t at = rng() % bytes.size();
        // Lengths and counts are where damage hurts: whole words of ones, zeros or noise.
        const uint64_t word = i % 3 == 0 ? ~uint64_t{0} : i % 3 == 1 ? 0 : rng();
        std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
      }
      error_of([&] { walk(parse(bytes)); });
    }
  }

  TEST_CASE("lengths and counts that the file cannot hold are refused before use") {
    const uint64_t huge = ~uint64_t{0} - 7;
    check_says(parse_error(test::gguf_head(3, huge, 0).str()), "tensors needs");
    check_says(parse_error(test::gguf_head(3, 0, huge).str()), "metadata keys needs");
    check_says(parse_error(test::gguf_head(3, 0, 1).u64(huge).u32(0).u32(0).str()),
               "the name of metadata key 0 needs");
    for (const uint32_t element : {0u, 6u, 8u, 9u, 12u}) {
      Bytes b = test::gguf_head(3, 0, 1);
      check_says(parse_error(b.text("k").u32(9).u32(element).u64(huge).u64(0).str()),
                 "metadata key \"k\" needs");
    }
    check_says(parse_error(test::gguf_head(3, 0, 1).text("k").u32(13).u64(0).str()),
               "unknown value type 13");
    check_says(parse_error(test::gguf_head(3, 0, 1).text("k").u32(7).u8(2).str()),
               "neither 0 nor 1");
  }

  TEST_CASE("impossible tensors are refused by name") {
    const std::string data(64, '\0');
    const std::string good = one_tensor({4}).pad(32).str() + data;
    CHECK(parse_error(good).empty());
    const uint64_t half = uint64_t{1} << 32;
    check_says(parse_error(one_tensor({half, half}).str() + data), "impossibly large");
    check_says(parse_error(one_tensor({uint64_t{1} << 63}).str() + data), "impossibly large");
    check_says(parse_error(one_tensor({uint64_t{1} << 50}).str() + data), "truncated or damaged");
    check_says(parse_error(one_tensor({4, 0}).str() + data), "dimension of 0");
    check_says(parse_error(one_tensor({}).u64(0).str() + data), "0 dimensions");
    check_says(parse_error(one_tensor({1, 1, 1, 1, 1}).str() + data), "5 dimensions");
    check_says(parse_error(one_tensor({33}, 8).str() + data), "not a multiple of 32");
    check_says(parse_error(one_tensor({4}, 0, 4).str() + data), "multiple of the alignment 32");
    check_says(parse_error(one_tensor({4}, 0, ~uint64_t{31}).str() + data), "truncated or damaged");
  }

  TEST_CASE("a type without known size is refused at once, an unsupported one when it is used") {
    const std::string data(64, '\0');
    check_says(parse_error(one_tensor({4}, 99).str() + data), "tensor \"t\" has type 99");
    const std::string bytes = one_tensor({4}, 27).pad(32).str() + data;  // I64
    const GgufFile file = parse(bytes);
    CHECK(file.tensors().at(0).n_bytes == 32);
    check_says(error_of([&] { (void)file.tensor("t"); }), "tensor \"t\" has type I64");
  }

  TEST_CASE("a name may occur once") {
    Bytes keys = test::gguf_head(3, 0, 2);
    keys.text("k").u32(0).u8(1).text("k").u32(0).u8(1);
    check_says(parse_error(keys.str()), "key \"k\" occurs twice");
    Bytes tensors = test::gguf_head(3, 2, 0);
    for (const uint64_t at : {0, 32}) tensors.text("t").u32(1).u64(4).u32(0).u64(at);
    check_says(parse_error(tensors.pad(32).str() + std::string(48, '\0')),
               "tensor \"t\" occurs twice");
  }

  TEST_CASE("tensors that overlap, and bytes between them that are nobody's, are refused") {
    // Three tensors of 4, 20 and 8 floats, at these offsets.
    const auto placed = [](uint64_t a, uint64_t b, uint64_t c) {
      Bytes bytes = test::gguf_head(3, 3, 0);
      bytes.text("a").u32(1).u64(4).u32(0).u64(a);
      bytes.text("b").u32(1).u64(20).u32(0).u64(b);
      bytes.text("c").u32(1).u64(8).u32(0).u64(c);
      return bytes.pad(32).str() + std::string(512, '\0');
    };
    for (const auto& [a, b, c] : {std::tuple{0, 32, 128}, {128, 32, 0}, {96, 0, 128}})
      CHECK(parse_error(placed(a, b, c)) == "");
    check_says(parse_error(placed(0, 32, 96)),
               "tensor \"c\" begins at 96, within tensor \"b\", which ends at 128");
    check_says(parse_error(placed(0, 0, 96)), "within tensor");
    check_says(parse_error(placed(0, 32, 160)),
               "bytes 128 to 160 of the data, before tensor \"c\", belong to no tensor");
    check_says(parse_error(placed(32, 64, 160)), "bytes 0 to 32 of the data, before tensor \"a\"");
  }

  TEST_CASE("the file's own alignment is used, and must be sane") {
    const auto aligned = [](uint32_t alignment, uint64_t offset, uint64_t begin) {
      Bytes b = test::gguf_head(3, 2, 1);
      b.text("general.alignment").u32(4).u32(alignment);
      b.text("s").u32(1).u64(1).u32(0).u64(0).text("t").u32(1).u64(1).u32(0).u64(offset).pad(begin);
      return b.str() + std::string(offset, '\0') + std::string("\0\0\x80\x3F", 4);
    };
    for (const uint32_t alignment : {8u, 64u, 4096u}) {
      const std::string bytes = aligned(alignment, alignment, alignment);
      const GgufFile file = parse(bytes);
      float value = 0.0f;
      dequantize(GgmlType::kF32, file.tensor("t").data, &value, 1);
      CHECK(value == 1.0f);
    }
    for (const uint32_t alignment : {0u, 4u, 33u, 96u})
      check_says(parse_error(aligned(alignment, 0, 8)), "must be a power of two");
  }

  TEST_CASE("control characters of a file do not reach the terminal") {
    const std::string said =
        parse_error(test::gguf_head(3, 0, 1).text("\x1B[2Jk\n").u32(13).u64(0).str());
    check_says(said, R"(\x1b[2Jk\x0a)");
    CHECK_FALSE(contains(said, "\x1B"));
  }

  TEST_CASE("a write that fails leaves nothing behind") {
    const TempDir folder;
    CHECK_THROWS_WITH(small_writer().write(folder.path("x.gguf"),
                                           [](size_t, std::span<std::byte>) {
                                             throw std::runtime_error("stopped");
                                           }),
                      "stopped");
    CHECK(fs::is_empty(folder.root()));
    check_says(error_of([&] { small_writer().write(folder.path("no/x.gguf"), fill_counting); }),
               "cannot be written: No such file");
  }
}

TEST_SUITE("core/model/gguf real files") {
  KVASIR_DATA_TEST_CASE("a published small model opens with its keys") {
    KVASIR_REQUIRE_DATA(data);
    const GgufFile file = GgufFile::open((data / "models" / "stories260K.gguf").string());
    CHECK(file.version() == 3);
    CHECK(file.tensors().size() == 48);
    CHECK(file.require<std::string_view>("general.architecture") == "llama");
    CHECK(file.require<uint32_t>("llama.block_count") == 5);
    CHECK(file.require<uint32_t>("llama.attention.head_count_kv") == 4);
    CHECK(file.require<float>("llama.attention.layer_norm_rms_epsilon") == 1e-5f);
    // A missing token is stored as -1 in an unsigned number.
    CHECK(file.get<uint32_t>("tokenizer.ggml.padding_token_id") == 4294967295u);
    const auto tokens = file.get_array<std::string_view>("tokenizer.ggml.tokens");
    REQUIRE(tokens.has_value());
    CHECK(tokens->size() == 512);
    CHECK(tokens->at(1) == "<s>");
    CHECK(file.tensor("token_embd.weight").shape == std::vector<uint64_t>{64, 512});
  }

  KVASIR_DATA_TEST_CASE("every vocabulary opens and has as many token types as tokens") {
    KVASIR_REQUIRE_DATA(data);
    size_t n_files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(data / "tokenizers")) {
      if (entry.path().extension() != ".gguf") continue;
      ++n_files;
      const GgufFile file = GgufFile::open(entry.path().string());
      CAPTURE(file.path());
      CHECK(file.tensors().empty());
      const auto tokens = file.get_array<std::string_view>("tokenizer.ggml.tokens");
      const auto types = file.get_array<int32_t>("tokenizer.ggml.token_type");
      REQUIRE(tokens.has_value());
      REQUIRE(types.has_value());
      CHECK(tokens->size() == types->size());
    }
    CHECK(n_files > 0);
  }
}
