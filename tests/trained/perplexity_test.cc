// Perplexities of trained models through the tool, against those of transformers.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/data.h"
#include "tests/support/trained_model.h"
#include "tests/tools/process.h"
#include "tests/trained/golden.h"

namespace {
using namespace kvasir::test;

KVASIR_DATA_TEST_CASE("perplexity over 2,048 tokens in f32 is that of transformers") {
  KVASIR_REQUIRE_DATA(data);
  const TempDir dir;
  const std::string text = dir.path("text.txt");
  std::ofstream(text) << read_bytes((data / "text/war-and-peace.txt").string()).substr(0, 12000);
  bool found_any = false;
  for (const GoldenPerplexity& golden : kGoldenPerplexities) {
    const std::filesystem::path model = trained_model(golden.file);
    if (!has_model(model)) continue;
    found_any = true;
    const Finished done = run_kvasir({"ppl", "-m", model.string(), "-f", text, "-c", "2048",
                                      "--compute", "f32", "-ctk", "f32", "-ctv", "f32", "--json"});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const double found = nlohmann::json::parse(done.out).at("perplexity");
    MESSAGE(std::string(golden.file) << ": " << found << ", " << golden.perplexity);
    CHECK(std::abs(found / golden.perplexity - 1.0) < 1e-5);
  }
  if (!found_any) skip_case();
}

}  // namespace
