// What `run` says of a storage that reads blocks back: how many calls, how many at a time, how
// long, and how much of that no step waited for.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace {
using namespace kvasir::test;
using Json = nlohmann::json;

struct TieredRun {
  TinyModel model;
  std::string prompt = model.folder.write("prompt", words());
  static std::string words() {  // long enough that blocks have left memory before decoding
    std::string out;
    for (int i = 0; i < 600; ++i) out.append("line ").append(std::to_string(i * 7919 % 1000));
    return out;
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> out = {"run",      "-m",
                                    model.path, "-f",
                                    prompt,     "-n",
                                    "32",       "--ignore-eos",
                                    "-s",       "dense",
                                    "--temp",   "0",
                                    "--set",    "cache.block_size=16",
                                    "--set",    "storage.plugin=tiered",
                                    "--set",    "storage.cached_blocks=1"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
};

TEST_CASE("a run says what reading blocks back took, the same text whatever reads them") {
  const TieredRun run;
  const Finished text = run_kvasir(run.command({}));
  CHECK(text.err.find("reading: file: ") != std::string::npos);
  CHECK(text.err.find(" % hidden; of all, ") != std::string::npos);
  std::string answer;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"--set", "storage.io=thread"},
        {"--set", "storage.direct=false", "--set", "storage.queue_depth=2"},
        {"--set", "storage.cache_strategy=counter"},
        {"--set", "storage.read_ahead=false"}}) {
    std::vector<std::string> command = run.command(more);
    command.push_back("--json");
    const Json r = json_of(command);
    CAPTURE(r.dump());
    const Json& file = r["tiers"][1];
    CHECK(file["tier"] == "file");
    CHECK(file["reads"] > 0);
    CHECK(file["reading_ms"] > 0.0);
    CHECK(file["reads_at_a_time"] > 0.0);
    if (more.size() == 2 && more[1] == "storage.io=thread") CHECK(file["reads_at_a_time"] <= 1.0);
    const double reading = file["reading_ms"], waited = file["waited_ms"];
    CHECK(file["reading_hidden"].get<double>() == doctest::Approx(1.0 - waited / reading));
    CHECK(waited <= reading);
    if (more.size() == 2 && more[1] == "storage.read_ahead=false") CHECK(waited > 0.5 * reading);
    CHECK(r["tiers"][0]["waited_ms"] == 0.0);
    CHECK(r["reading_hidden"] >= 0.0);
    CHECK(r["reading_hidden"] <= 1.0);
    if (answer.empty()) answer = r["text"];
    CHECK(r["text"] == answer);
  }
}

TEST_CASE("a run over two files says what came from each, and gives the same text") {
  const TieredRun run;
  const std::string folder =
      std::filesystem::path(run.model.folder.path("x")).parent_path().string();
  std::vector<std::string> chain = run.command(
      {"--set", "storage.folder_limit_bytes=256KiB", "--set", "storage.folder_2=" + folder});
  const std::string said = run_kvasir(chain).err;
  CAPTURE(said);
  CHECK(said.find(" % from file, ") != std::string::npos);
  CHECK(said.find(" % from file_2)") != std::string::npos);
  CHECK(said.find("; file_2: ") != std::string::npos);
  chain.push_back("--json");
  std::vector<std::string> plain = run.command({});
  plain.push_back("--json");
  const Json r = json_of(chain);
  CHECK(r["text"] == json_of(plain)["text"]);
  REQUIRE(r["tiers"].size() == 3);
  CHECK(r["tiers"][2]["tier"] == "file_2");
  for (const int tier : {1, 2}) {
    CHECK(r["tiers"][tier]["tokens"] > 0);
    CHECK(r["tiers"][tier]["reads"] > 0);
    CHECK(r["tiers"][tier]["reading_ms"] > 0.0);
  }
}

TEST_CASE("a run whose blocks are pages of a mapped file gives the same text as one in memory") {
  const TieredRun run;
  std::vector<std::string> mapped = {"run",          "-m", run.model.path, "-f", run.prompt,
                                     "-n",           "16", "--temp",       "0",  "--json",
                                     "--ignore-eos", "-s", "dense"};
  const std::string want = json_of(mapped)["text"];
  mapped.insert(mapped.end(), {"--set", "storage.map_folder=" + run.model.folder.root().string()});
  CHECK(json_of(mapped)["text"] == want);
}

}  // namespace
