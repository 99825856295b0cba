// Models split over several GGUF files: opened as one, identified as one, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "core/model/gguf/gguf.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"
#include "tests/core/model/gguf_bytes.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;
using test::Bytes;
using test::TempDir;
namespace fs = std::filesystem;

// Checks that `text` has `part` in it, and shows it when not.
void check_says(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, "\"", part, "\" is not in: ", text);
}

std::string tensor_name(uint32_t no) { return std::string("t").append(std::to_string(no)); }

// Three parts, m-00001-of-00003.gguf and so on, with one tensor each: the values of tensor t are t.
void write_parts(const TempDir& folder, int32_t n_tensors = 3) {
  for (uint32_t no = 0; no < 3; ++no) {
    GgufWriter writer;
    if (no == 0) writer.set("general.name", std::string("parts"));
    writer.set("split.no", GgufRaw{2, Bytes().u16(no).str()});
    writer.set("split.count", GgufRaw{2, Bytes().u16(3).str()});
    writer.set("split.tensors.count", n_tensors);
    writer.add_tensor(tensor_name(no), GgmlType::kF32, {8});
    writer.write(folder.path("m-0000" + std::to_string(no + 1) + "-of-00003.gguf"),
                 [&](size_t, std::span<std::byte> bytes) {
                   const std::vector<float> values(8, static_cast<float>(no));
                   std::memcpy(bytes.data(), values.data(), bytes.size());
                 });
  }
}

}  // namespace

TEST_SUITE("core/model/gguf split") {
  TEST_CASE("any part opens all of them as one file") {
    const TempDir folder;
    write_parts(folder);
    for (const char* part : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
      const GgufFile file = GgufFile::open(folder.path(part));
      CHECK(file.path() == folder.path("m-00001-of-00003.gguf"));
      CHECK(file.get<std::string_view>("general.name") == "parts");
      CHECK(file.tensors().size() == 3);
      CHECK(file.file_bytes() == 3 * fs::file_size(folder.path("m-00002-of-00003.gguf")) +
                                     fs::file_size(folder.path("m-00001-of-00003.gguf")) -
                                     fs::file_size(folder.path("m-00003-of-00003.gguf")));
      for (uint32_t t = 0; t < 3; ++t) {
        float values[8];
        const GgufTensor& tensor = file.tensor(tensor_name(t));
        dequantize(tensor.type, tensor.data, values, 8);
        CHECK(values[7] == static_cast<float>(t));
      }
    }
  }

  TEST_CASE("a split model and its joined twin have one identity") {
    const TempDir folder;
    write_parts(folder);
    GgufWriter joined;
    joined.set("general.name", std::string("parts"));
    for (uint32_t t = 0; t < 3; ++t) joined.add_tensor(tensor_name(t), GgmlType::kF32, {8});
    const auto fill = [](float add) {
      return [add](size_t t, std::span<std::byte> bytes) {
        const std::vector<float> values(8, static_cast<float>(t) + add);
        std::memcpy(bytes.data(), values.data(), bytes.size());
      };
    };
    joined.write(folder.path("joined.gguf"), fill(0.0f));
    joined.write(folder.path("other.gguf"), fill(1.0f));
    const uint64_t hash = GgufFile::open(folder.path("m-00001-of-00003.gguf")).content_hash();
    CHECK(GgufFile::open(folder.path("joined.gguf")).content_hash() == hash);
    CHECK(GgufFile::open(folder.path("other.gguf")).content_hash() != hash);
    joined.set("general.name", std::string("renamed"));
    joined.write(folder.path("other.gguf"), fill(0.0f));
    CHECK(GgufFile::open(folder.path("other.gguf")).content_hash() != hash);
  }

  TEST_CASE("a missing, misnamed or mixed-up part is named") {
    const TempDir folder;
    write_parts(folder);
    const std::string first = folder.path("m-00001-of-00003.gguf");
    const std::string second = folder.path("m-00002-of-00003.gguf");
    fs::rename(second, folder.path("kept"));
    check_says(test::error_of([&] { GgufFile::open(first); }),
               second + ": missing, it is part 2 of 3");
    fs::copy(folder.path("m-00003-of-00003.gguf"), second);
    check_says(test::error_of([&] { GgufFile::open(first); }), "says that it is part 3 of 3");
    check_says(test::error_of([&] { GgufFile::open(folder.path("kept")); }),
               "must end in -00002-of-00003.gguf");
    write_parts(folder, 4);
    check_says(test::error_of([&] { GgufFile::open(first); }), "split.tensors.count is 4");
  }

  TEST_CASE("split numbers that make no sense are refused") {
    const TempDir folder;
    const auto open_with = [&](uint32_t no, uint32_t count) {
      GgufWriter writer;
      writer.set("split.no", no);
      writer.set("split.count", count);
      writer.write(folder.path("x.gguf"), {});
      return test::error_of([&] { GgufFile::open(folder.path("x.gguf")); });
    };
    CHECK(open_with(0, 1).empty());
    CHECK(open_with(0, 0).empty());
    check_says(open_with(3, 3), "part 4 of 3");
    check_says(open_with(0, 4000000000u), "part 1 of 4000000000");
  }
}
