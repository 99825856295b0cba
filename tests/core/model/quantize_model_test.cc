// A model written anew: the numbers of each tensor, its metadata, and what it does not depend on.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/quantize_model.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"
#include "core/model/synthetic/random_model.h"
#include "tests/support/effort.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;

ThreadPool& pool(uint32_t n_threads = 2) {
  static ThreadPool two(Topology::detect(), 2, false), three(Topology::detect(), 3, false),
      one(Topology::detect(), 1, false);
  return n_threads == 1 ? one : n_threads == 2 ? two : three;
}

struct Source {
  test::TempDir dir;
  std::string path = dir.path("in.gguf");
  explicit Source(GgmlType type, bool tied = false) {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.type = type;
    spec.d_model = 512;  // rows of two K blocks; d_ff of 96 has none
    spec.head_dim = 64;
    spec.norm_spread = 0.1f;
    spec.tied_embeddings = tied;
    write_random_model(spec, path);
  }
  GgufFile quantize(const WeightMix& mix, uint32_t n_threads = 2) const {
    const GgufFile file = GgufFile::open(path);
    write_quantized_model(file, retype(file, mix), mix, out(), pool(n_threads));
    return GgufFile::open(out());
  }
  std::string out() const { return dir.path("out.gguf"); }
};

// What the new tensor must be: the old one's numbers through quantize() at once.
std::string expected(const GgufTensor& from, GgmlType type) {
  std::vector<float> values(from.n_elements);
  dequantize(from.type, from.data, values.data(), values.size());
  std::string bytes(values.size() / block_elements(type) * block_bytes(type), '\0');
  quantize(type, values.data(), bytes.data(), values.size());
  return bytes;
}

std::string bytes_of(const GgufTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.n_bytes};
}

}  // namespace

TEST_SUITE("core/model/quantize_model") {
  TEST_CASE("every type and mix: matrices rounded, the rest byte for byte") {
    for (const GgmlType before : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
      const Source source(before);
      const GgufFile from = GgufFile::open(source.path);
      for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1",
                               "iq4_nl", "q4_k", "q5_k", "q6_k", "q4_k_s", "q4_k_m", "q5_k_m"}) {
        CAPTURE(type);
        if (before != GgmlType::kBF16 && test::few_cases()) continue;
        const WeightMix mix = weight_mix_by_name(type, "--type");
        const GgufFile to = source.quantize(mix);
        REQUIRE(to.tensors().size() == from.tensors().size());
        for (size_t i = 0; i < to.tensors().size(); ++i) {
          const GgufTensor& a = from.tensors()[i];
          const GgufTensor& b = to.tensors()[i];
          CAPTURE(a.name);
          CHECK(b.name == a.name);
          CHECK(b.shape == a.shape);
          const uint32_t n_layers = preset("tiny-llama-test").n_layers;
          const GgmlType type_after =
              a.shape.size() > 1 ? mix.type_of(a.name, a.shape[0], {n_layers, false}) : a.type;
          REQUIRE(b.type == type_after);
          CHECK(bytes_of(b) == (a.type == b.type ? bytes_of(a) : expected(a, b.type)));
        }
        CHECK(to.require<uint32_t>("general.file_type") == mix.file_type());
        CHECK(to.require<uint32_t>("general.quantization_version") == 2);
        for (const std::string& key : from.keys())
          if (key != "general.file_type") CHECK(to.raw(key)->bytes == from.raw(key)->bytes);
        CHECK(to.keys() == from.keys());
      }
    }
  }

  TEST_CASE("a tied embedding is the output matrix") {
    const Source source(GgmlType::kBF16, true);
    const GgufFile file = source.quantize(weight_mix_by_name("q4_k_m", "--type"));
    CHECK(file.tensor("token_embd.weight").type == GgmlType::kQ6_K);
    CHECK(file.tensor("blk.0.attn_q.weight").type == GgmlType::kQ4_K);
    CHECK(file.tensor("blk.0.ffn_down.weight").type == GgmlType::kQ5_0);  // rows of 96
    CHECK(file.tensor("blk.0.attn_norm.weight").type == GgmlType::kF32);
  }

  TEST_CASE(
      "the file does not depend on the number of threads, and writing it again changes nothing") {
    const Source source(GgmlType::kF32);
    const WeightMix mix = weight_mix_by_name("q5_k_m", "--type");
    source.quantize(mix, 1);
    const std::string one = test::read_bytes(source.out());
    source.quantize(mix, 2);
    CHECK(test::read_bytes(source.out()) == one);
    source.quantize(mix, 3);
    CHECK(test::read_bytes(source.out()) == one);
    const GgufFile once = GgufFile::open(source.out());
    for (const RetypedTensor& t : retype(once, mix)) CHECK_FALSE(t.changes());
    const std::string again = source.dir.path("again.gguf");
    write_quantized_model(once, retype(once, mix), mix, again, pool());
    CHECK(test::read_bytes(again) == one);
  }

  TEST_CASE("what is rounded twice is known") {
    const Source source(GgmlType::kQ8_0);
    const GgufFile file = GgufFile::open(source.path);
    size_t n = 0;
    for (const RetypedTensor& t : retype(file, GgmlType::kQ4_0)) n += t.is_requantized() ? 1 : 0;
    CHECK(n == 7 * preset("tiny-llama-test").n_layers + 2);
    for (const RetypedTensor& t : retype(file, GgmlType::kQ8_0)) CHECK_FALSE(t.is_requantized());
  }

  TEST_CASE(
      "the first number that does not fit is named, however many threads look; no file is left") {
    const test::TempDir dir;
    const std::string path = dir.path("in.gguf"), out = dir.path("out.gguf");
    std::vector<float> values(64 * 4096, 0.5f);
    values[64 * 4000 + 3] = std::numeric_limits<float>::quiet_NaN();
    values[64 * 1111 + 7] = std::numeric_limits<float>::infinity();
    values[64 * 1112 + 1] = 1e9f;
    GgufWriter writer;
    writer.set("general.architecture", std::string("llama"));
    writer.add_tensor("blk.0.ffn_up.weight", GgmlType::kF32, {64, 4096});
    writer.write(path, [&](size_t, std::span<std::byte> bytes) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    });
    const GgufFile file = GgufFile::open(path);
    for (const uint32_t n_threads : {1u, 2u, 3u})
      CHECK_THROWS_WITH_AS(
          write_quantized_model(file, retype(file, GgmlType::kQ8_0), GgmlType::kQ8_0, out,
                                pool(n_threads)),
          "tensor \"blk.0.ffn_up.weight\": element 71111 is inf, which Q8_0 does not hold; the "
          "weights are damaged, convert the model again",
          Error);
    CHECK_FALSE(std::filesystem::exists(out));
  }

  TEST_CASE("progress reaches the total and may stop the writing") {
    const Source source(GgmlType::kBF16);
    const GgufFile file = GgufFile::open(source.path);
    uint64_t last = 0, of = 1;
    write_quantized_model(file, retype(file, GgmlType::kQ4_0), GgmlType::kQ4_0, source.out(),
                          pool(), [&](uint64_t done, uint64_t total) {
                            CHECK(done >= last);
                            last = done;
                            of = total;
                          });
    CHECK(last == of);
    std::filesystem::remove(source.out());
    CHECK_THROWS_WITH(write_quantized_model(
                          file, retype(file, GgmlType::kQ4_0), GgmlType::kQ4_0, source.out(),
                          pool(), [](uint64_t, uint64_t) { throw std::runtime_error("enough"); }),
                      "enough");
    CHECK_FALSE(std::filesystem::exists(source.out()));
  }
}
