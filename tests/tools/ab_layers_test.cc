// kvasir ab, layer by layer: what arms capture of dense attention on the first samples.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/tools/ab_run.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

Words command(const TinyModel& m, const std::string& run) {
  return {"ab",
          "-m",
          m.path,
          "block_topk",
          "streaming",
          "--set",
          "cache.block_size=16",
          "--task",
          "passkey",
          "--length",
          "512,1024",
          "-n",
          "2",
          "--quick",
          "--set",
          "cache.dense_layers=[]",
          "--no-ladder",
          "-o",
          run};
}

}  // namespace

TEST_SUITE_BEGIN("tools/ab");

TEST_CASE("a run says what each layer of an arm captures of dense attention") {
  const TinyModel m;
  const TempDir folder;
  const std::string run = folder.path("run");
  REQUIRE(run_kvasir(command(m, run)).code == 0);
  const std::string layers = read_bytes(run + "/layers.csv");
  const size_t n_layers = cell_of(report_of(run), "streaming")["layers"].size();
  REQUIRE(n_layers >= 1);
  // One sample of each of two lengths, two arms.
  CHECK(lines_in(layers) == 1 + 2 * 2 * n_layers);
  for (const Json& cell : report_of(run)["cells"]) {
    if (cell["role"] != "arm") continue;
    for (const Json& layer : cell["layers"]) {
      const double captured = layer["captured_mass"], exact = layer["exact_mass"];
      CAPTURE(cell["strategy"]);
      CHECK(layer["tokens_attended"].get<double>() <= cell["length"].get<double>());
      CHECK(captured > 0);
      CHECK(captured <= exact + 1e-6);
      CHECK(exact <= 1 + 1e-6);
      if (cell["strategy"] != "block_topk") continue;
      // Its budget of 4,096 tokens holds everything, so only the rounding of K and V is left.
      CHECK(captured == doctest::Approx(1).epsilon(1e-5));
      CHECK(layer["heaviest_recall"] == 1.0);
      CHECK(layer["output_error"].get<double>() < 0.01);
    }
  }
  SUBCASE("a file that is gone is made again, the same") {
    std::filesystem::remove(run + "/layers.csv");
    REQUIRE(run_kvasir({"ab", "--resume", run}).code == 0);
    CHECK(read_bytes(run + "/layers.csv") == layers);
  }
  SUBCASE("text, Markdown and the page have them") {
    CHECK(run_kvasir({"ab", "show", run}).out.find("captured mass") != std::string::npos);
    CHECK(run_kvasir({"ab", "show", run, "--markdown"}).out.find("| captured mass") !=
          std::string::npos);
    const std::string page = read_bytes(run + "/report.html");
    CHECK(page.find("Captured attention mass by layer") != std::string::npos);
    CHECK(page.find("passkey, by length") != std::string::npos);
  }
}

// The attention of a decoded token over a window is known: with a window as long as the prompt all
// is captured, and a shorter one captures less in every layer.
TEST_CASE("a longer window captures more in every layer") {
  const TinyModel m;
  const TempDir folder;
  const auto captured = [&](const std::string& window) {
    const std::string run = folder.path("w" + window);
    REQUIRE(run_kvasir({"ab", "-m", m.path, "streaming", "--set", "cache.window_tokens=" + window,
                        "--task", "passkey", "--length", "512", "-n", "1", "--quick", "--no-ladder",
                        "-o", run})
                .code == 0);
    std::vector<double> out;
    const Json report = report_of(run);
    for (const Json& layer : cell_of(report, "streaming")["layers"])
      out.push_back(layer["captured_mass"]);
    return out;
  };
  const std::vector<double> few = captured("32"), more = captured("256"), all = captured("600");
  REQUIRE(few.size() == more.size());
  for (size_t i = 0; i < few.size(); ++i) {
    CHECK(few[i] < more[i]);
    CHECK(more[i] < all[i]);
    CHECK(all[i] == doctest::Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("layers are left out where they are not wanted") {
  const TinyModel m;
  const TempDir folder;
  const std::string run = folder.path("run");
  REQUIRE(run_kvasir(command(m, run) + Words{"--layer-samples", "0"}).code == 0);
  CHECK(!std::filesystem::exists(run + "/layers.csv"));
  CHECK(cell_of(report_of(run), "streaming")["layers"].empty());
  CHECK(run_kvasir({"ab", "show", run}).out.find("captured mass") == std::string::npos);
}

TEST_CASE("a line of layers that is none is said with its place") {
  const TinyModel m;
  const TempDir folder;
  const std::string run = folder.path("run");
  REQUIRE(run_kvasir(command(m, run)).code == 0);
  const std::string layers = read_bytes(run + "/layers.csv");
  const size_t second = layers.find('\n') + 1;
  std::ofstream(run + "/layers.csv") << layers.substr(0, second) << "rubbish\n"
                                     << layers.substr(second);
  const Finished done = run_kvasir({"ab", "show", run});
  CHECK(done.code == 2);
  CHECK(done.err.find("layers.csv:2: not a record of a run") != std::string::npos);
}

TEST_SUITE_END();
