// kvasir bench bandwidth as a program uses it. Nothing here depends on how fast the machine is.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using Json = nlohmann::json;

const std::vector<std::string> kSmall = {"bench", "bandwidth", "-r",          "2",
                                         "-t",    "1,2",       "--mebibytes", "4"};

std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> out = kSmall;
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST_CASE("bench bandwidth: a row per thread count, with every figure above 0") {
  const Json r = json_of(small({"-o", "json"}));
  CHECK(r["repetitions"] == 2);
  CHECK(r["bytes"] > 3 << 20);
  CHECK(r["bytes"] <= 4 << 20);
  REQUIRE(r["rows"].size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    CHECK(row["threads"] == i + 1);
    for (const char* name :
         {"read_bytes_per_second", "blocks_32k_bytes_per_second", "blocks_4k_bytes_per_second",
          "multiply_adds_per_second", "fork_join_us", "fork_join_p99_us", "fork_join_asleep_us"})
      CHECK(row[name] > 0.0);
    CHECK(row["fork_join_p99_us"] >= row["fork_join_us"]);
    CHECK(row["read_spread"] >= 0.0);
  }
}

TEST_CASE("bench bandwidth: -o csv has the rows of -o json, --json is -o json") {
  std::istringstream csv(run_kvasir(small({"-o", "csv"})).out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) lines.push_back(line);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with("bytes,repetitions,threads,read_bytes_per_second,read_spread,"));
  for (const std::string& line : lines)
    CHECK(std::count(line.begin(), line.end(), ',') ==
          std::count(lines[0].begin(), lines[0].end(), ','));
  CHECK(json_of(small({"--json"}))["rows"].size() == 2);
}

TEST_CASE("bench bandwidth: the table is Markdown, and its columns are explained") {
  const Finished done = run_kvasir(small({}));
  CHECK(done.code == 0);
  CHECK(has(done.out, "| threads |"));
  CHECK(has(done.out, "--:|"));
  const Finished help = run_kvasir({"bench", "bandwidth", "--help"});
  for (const char* column : {"streams", "32 KiB", "4 KiB", "GFLOP/s", "fork-join", "asleep"}) {
    CAPTURE(column);
    CHECK(has(done.out, column));
    CHECK(has(help.out, std::string("\n  ") + column + " "));
  }
}

TEST_CASE("bench bandwidth: mistakes are named") {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> command{"bench", "bandwidth"};
    command.insert(command.end(), more.begin(), more.end());
    const Finished done = run_kvasir(command);
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    return done.err;
  };
  CHECK(has(refused({"-r", "0"}), "-r must be above 0"));
  CHECK(has(refused({"-t", "1,x"}), "-t x: expected a number"));
  CHECK(has(refused({"-t", "0"}), "must be above 0"));
  CHECK(has(refused({"-o", "xml"}), "xml"));
  CHECK(has(refused({"-o", "md", "--json"}), "excludes"));
}

}  // namespace
