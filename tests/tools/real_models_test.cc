// Real trained models through the whole tool: text, logits and perplexity known beforehand.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/data.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/npy.h"
#include "tests/tools/process.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::run_kvasir;
using kvasir::test::TempDir;

KVASIR_DATA_TEST_CASE("stories260K tells its 200-token story byte for byte") {
  KVASIR_REQUIRE_DATA(data);
  const Finished done = run_kvasir({"run", "-m", (data / "models/stories260K.gguf").string(), "-p",
                                    "", "-n", "200", "--temp", "0", "--compute", "f32"});
  REQUIRE(done.code == 0);
  const std::string expected =
      kvasir::test::read_bytes((data / "golden/stories260K.greedy200.expected.txt").string());
  CHECK(done.out == expected + "\n");
}

// llama-perplexity's figures where it was run, else an independent forward pass by the same rule.
KVASIR_DATA_TEST_CASE("perplexities are those of other engines, in f32 and in bf16") {
  KVASIR_REQUIRE_DATA(data);
  const std::vector<std::pair<const char*, double>> expected = {
      {"stories260K.gguf", 4.1036},           {"babyllama-tok361.f32.gguf", 2.2063},
      {"babyllama-tok105.f32.gguf", 2.3237},  {"babyllama-tok361.F16.gguf", 2.2064},
      {"babyllama-tok361.Q8_0.gguf", 2.2055}, {"babyllama-tok361.Q4_0.gguf", 2.3166}};
  for (const auto& [model, perplexity] : expected) {
    for (const std::string compute : {"f32", "auto"}) {
      CAPTURE(model);
      CAPTURE(compute);
      const Finished done = run_kvasir({"ppl", "-m", (data / "models" / model).string(), "-f",
                                        (data / "golden/ppl-text.txt").string(), "-c", "256",
                                        "--compute", compute, "--json"});
      REQUIRE(done.code == 0);
      const double found = nlohmann::json::parse(done.out).at("perplexity");
      CHECK(std::abs(found / perplexity - 1.0) < (compute == "f32" ? 1e-3 : 1e-2));
    }
  }
}

// Rows of a float32 .npy, format 1.0.
std::vector<float> npy_floats(const std::string& bytes) {
  uint16_t header = 0;
  std::memcpy(&header, bytes.data() + 8, sizeof header);
  const size_t begin = 10 + size_t{header};
  std::vector<float> values((bytes.size() - begin) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(float));
  return values;
}

KVASIR_DATA_TEST_CASE("model logits gives the golden logits of every position") {
  KVASIR_REQUIRE_DATA(data);
  for (const auto& [model, golden] : {std::pair{"stories260K.gguf", "stories260K"},
                                      std::pair{"babyllama-tok105.f32.gguf", "babyllama-tok105"},
                                      std::pair{"babyllama-tok361.f32.gguf", "babyllama-tok361"}}) {
    CAPTURE(model);
    auto arrays =
        kvasir::test::read_npz((data / "golden" / (std::string(golden) + ".logits.npz")).string());
    const auto& logits = arrays.at("logits");
    std::ostringstream ids;
    for (uint64_t i = 0; i < logits.shape[0]; ++i)
      ids << (i ? "," : "") << static_cast<int>(arrays.at("ids").values[i]);
    TempDir folder;
    const std::string out = folder.path("logits.npy");
    const Finished done =
        run_kvasir({"model", "logits", "-m", (data / "models" / model).string(), "--tokens",
                    ids.str(), "-o", out, "--compute", "f32", "-ctk", "f32", "-ctv", "f32"});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const auto found = npy_floats(kvasir::test::read_bytes(out));
    REQUIRE(found.size() == logits.values.size());
    double worst = 0.0;
    for (size_t i = 0; i < found.size(); ++i)
      worst = kvasir::test::larger_or_nan(
          worst, std::abs(static_cast<double>(found[i]) - logits.values[i]));
    CHECK(worst < 1e-3);
  }
}

// A chain of files: headers installed elsewhere, a C compiler, --plugin-dir.
TEST_CASE("a strategy file runs a plugin that was built from the template alone") {
  TempDir folder;
  const std::string model = folder.path("tiny.gguf");
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "-o", model}).code == 0);
  const std::string strategy =
      folder.write("strided.toml",
                   "[cache]\nblock_size = 16\nsink_tokens = 16\nwindow_tokens = 16\n"
                   "[selector]\nplugin = \"org.example.strided\"\nstride = 4\n"
                   "[storage]\nplugin = \"kvasir.dram\"\n[attention]\nplugin = \"kvasir.cpu\"\n");
  const Finished done = run_kvasir({"run", "-m", model, "-s", strategy, "--plugin-dir",
                                    KVASIR_BINARY_DIR "/test-plugins/templates", "-p",
                                    std::string(600, 'x'), "-n", "8", "--temp", "0", "--json"});
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  const auto report = nlohmann::json::parse(done.out);
  CHECK(report.at("plugins").at(0).at("id") == "org.example.strided");
  CHECK(report.at("tokens_selected") > 0);
  CHECK(report.at("tokens_attended") < report.at("tokens_considered"));
  CHECK(report.at("fallbacks") == 0);
}

}  // namespace
