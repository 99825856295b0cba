// kvasir model quantize as its users meet it: what it prints, what it refuses, a model that runs.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

struct Quantized : TinyModel {  // bf16
  std::string out = folder.path("out.gguf");
  Finished to(const std::string& type, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"model", "quantize", path, out, "--type", type};
    all.insert(all.end(), more.begin(), more.end());
    return run_kvasir(all);
  }
};

}  // namespace

TEST_SUITE_BEGIN("tools/quantize");

TEST_CASE("each type and mix is written, summed up, and runs") {
  const Quantized model;
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl",
                           "q4_k", "q5_k", "q6_k", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"}) {
    CAPTURE(type);
    const Finished done = model.to(type, {"--force", "--json"});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const Json summary = Json::parse(done.out);
    uint64_t weights = 0, bytes = 0;
    for (const Json& row : summary.at("tensors")) {
      weights += row.at("n_weights").get<uint64_t>();
      bytes += row.at("bytes_after").get<uint64_t>();
      if (row.at("from") == "F32") CHECK(row.at("to") == "F32");  // norms
    }
    CHECK(weights == summary.at("n_weights").get<uint64_t>());
    CHECK(summary.at("bits_per_weight").get<double>() ==
          doctest::Approx(8.0 * static_cast<double>(bytes) / static_cast<double>(weights)));
    CHECK(summary.at("file_bytes").get<uint64_t>() == std::filesystem::file_size(model.out));
    const Finished run =
        run_kvasir({"run", "-m", model.out, "-p", "hello", "-n", "2", "--temp", "0"});
    CAPTURE(run.err);
    CHECK(run.code == 0);
  }
}

TEST_CASE("the table says what became of the tensors; -t changes nothing") {
  const Quantized model;
  const Finished done = model.to("q8_0", {"-t", "1"});
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "from  to    tensors"));
  CHECK(has(done.out, "BF16  Q8_0"));
  CHECK(has(done.out, "8.50"));
  CHECK(has(done.out, model.out + ": Q8_0, "));
  const std::string one = read_bytes(model.out);
  REQUIRE(model.to("q8_0", {"-t", "3", "--force"}).code == 0);
  CHECK(read_bytes(model.out) == one);
  // OUT may be given as -o, as in other commands.
  const std::string other = model.folder.path("other.gguf");
  REQUIRE(run_kvasir({"model", "quantize", model.path, "-o", other, "--type", "Q8_0"}).code == 0);
  CHECK(read_bytes(other) == one);
}

TEST_CASE("the output matrix may have a type of its own") {
  const Quantized model;
  const Finished done = model.to("q4_0", {"--output-tensor-type", "q8_0", "--json"});
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "\"to\": \"Q8_0\""));
  const Finished mixed = model.to("q4_0", {"--force", "--output-tensor-type", "q4_k_m"});
  CHECK(mixed.code == 2);
  CHECK(has(mixed.err, "--output-tensor-type q4_k_m: is a mix; give a type"));
}

TEST_CASE("what would lose work or precision unasked is refused") {
  const Quantized model;
  const auto refused = [&](const Finished& done, const std::string& why) {
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, why));
  };
  refused(model.to("q3_k_m"), "--type q3_k_m: expected one of f32, f16, bf16");
  refused(run_kvasir({"model", "quantize", model.path, model.path, "--type", "q8_0", "--force"}),
          "-o " + model.path + ": is the model that is read; choose another name");
  std::filesystem::create_symlink(model.path, model.folder.path("link.gguf"));
  refused(run_kvasir({"model", "quantize", model.path, model.folder.path("link.gguf"), "--type",
                      "q8_0", "--force"}),
          "is the model that is read");
  REQUIRE(model.to("q8_0").code == 0);
  const std::string before = read_bytes(model.out);
  refused(model.to("q4_0"), "-o " + model.out + ": exists already; --force overwrites it");
  CHECK(read_bytes(model.out) == before);

  const std::string twice = model.folder.path("twice.gguf");
  const auto again = [&](const std::string& type, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"model", "quantize", model.out, twice, "--type", type};
    all.insert(all.end(), more.begin(), more.end());
    return run_kvasir(all);
  };
  for (const char* type : {"q4_0", "f16"})
    refused(again(type), "is Q8_0 already, and what that lost does not come back in ");
  CHECK_FALSE(std::filesystem::exists(twice));
  CHECK(again("q4_0", {"--allow-requantize"}).code == 0);
  CHECK(again("q8_0", {"--force"}).code == 0);  // nothing changes, nothing is rounded
  CHECK(read_bytes(twice) == before);
}

TEST_CASE("model random writes mixes") {
  const TempDir folder;
  const std::string path = folder.path("a.gguf");
  const Finished done = run_kvasir(
      {"model", "random", "tiny-llama-test", "--type", "q5_k_m", "--d-model", "256", "-o", path});
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "as Q5_K_M"));
  CHECK(run_kvasir({"run", "-m", path, "-p", "hello", "-n", "2"}).code == 0);
  const Finished unknown =
      run_kvasir({"model", "random", "tiny-llama-test", "--type", "q3_k", "-o", path, "--force"});
  CHECK(unknown.code == 2);
  CHECK(has(unknown.err, "--type q3_k: expected one of f32, f16, bf16, q8_0"));
}

TEST_SUITE_END();
