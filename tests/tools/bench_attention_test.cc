// kvasir bench attention as a program uses it. Nothing here depends on how fast the machine is.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using Json = nlohmann::json;

std::vector<std::string> command(const std::vector<std::string>& more,
                                 const std::string& n_blocks = "8",
                                 const std::string& n_prompt = "24") {
  std::vector<std::string> out{"bench",      "attention", "--heads",        "8",
                               "--kv-heads", "2",         "--head-dim",     "32",
                               "-d",         "1000",      "--block-size",   "16",
                               "--window",   "64",        "--prompt-depth", "100",
                               "-r",         "2",         "--blocks",       n_blocks,
                               "-p",         n_prompt};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST_CASE("bench attention: bytes and operations are those of the keys attended") {
  const Json r = json_of(command({"--ctk", "f16,f32", "--ctv", "f16", "-o", "json"}));
  CHECK(r["backend"] == "kvasir.cpu");
  CHECK(r["limits"]["samples"] == 18);  // 6 rows, 2 repetitions and one to warm up
  REQUIRE(r["rows"].size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    const uint64_t token_bytes = 32 * ((i < 3 ? 2 : 4) + 2);
    CHECK(row["type_k"] == (i < 3 ? "f16" : "f32"));
    CHECK(row["ms"] > 0.0);
    CHECK(row["attend_ms"] >= row["ms"].get<double>() / 2);
    if (i % 3 == 2) {  // q K and p V: 4 flop per query head, element and key seen
      CHECK(row["test"] == "pp24 @ d100");
      CHECK(row["flop"] == 4.0 * 8 * 32 * (24 * 100 + 24 * 25 / 2));
      CHECK(row["bytes_per_second"].is_null());
      continue;
    }
    const uint64_t attended = row["tokens_attended"];
    CHECK(row["test"] == (i % 3 == 0 ? "dense @ d1000" : "blocks @ d1000"));
    CHECK(row["kv_bytes"] == attended * token_bytes);
    CHECK(row["flop"] == 4.0 * 4 * 32 * static_cast<double>(attended));
    if (i % 3 == 0) {
      CHECK(attended == 2 * 1001);
    } else {  // 8 blocks, and a window that begins at a block
      CHECK(attended >= 2 * (8 * 16 + 64));
      CHECK(attended < 2 * (8 * 16 + 64 + 16));
    }
    CHECK(row["bytes_per_second"].get<double>() ==
          doctest::Approx(1e3 * row["kv_bytes"].get<double>() / row["ms"].get<double>()));
    CHECK(row["of_read_bandwidth"].get<double>() ==
          doctest::Approx(row["bytes_per_second"].get<double>() /
                          r["limits"]["read_bytes_per_second"].get<double>()));
  }
}

TEST_CASE("bench attention: backends round what they multiply unless told not to") {
  const Json rounded = json_of(command({"--json"}, "0", "0"));
  CHECK(rounded["compute"] == "auto");
  CHECK(has(run_kvasir(command({}, "0", "0")).out, "what a backend may round is rounded"));
  CHECK(json_of(command({"--json", "--compute", "f32"}, "0", "0"))["compute"] == "f32");
  CHECK(has(run_kvasir(command({"--compute", "f32"}, "0", "0")).out, "all arithmetic in f32"));
}

TEST_CASE("bench attention: rows can be left out, columns are explained") {
  const Json r = json_of(command({"--json"}, "0", "0"));
  REQUIRE(r["rows"].size() == 1);
  CHECK(r["rows"][0]["kind"] == "dense");
  const Finished table = run_kvasir(command({}));
  const Finished help = run_kvasir({"bench", "attention", "--help"});
  for (const char* column :
       {"ms", "+/-", "with core", "MB", "GB/s", "of read", "GFLOP/s", "of f32"}) {
    CAPTURE(column);
    CHECK(has(table.out, std::string(" ") + column + " |"));
    CHECK(has(help.out, std::string("\n  ") + column + " "));
  }
}

TEST_CASE("bench attention: mistakes are named") {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> out{"bench", "attention"};
    out.insert(out.end(), more.begin(), more.end());
    const Finished done = run_kvasir(out);
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    return done.err;
  };
  CHECK(has(refused({"--heads", "8", "--kv-heads", "3"}), "--kv-heads must divide --heads"));
  CHECK(has(refused({"--head-dim", "33"}), "--head-dim must be a multiple of 16"));
  CHECK(has(refused({"-d", "0"}), "-d 0: must be above 0"));
  CHECK(has(refused({"-r", "0"}), "-r must be above 0"));
  CHECK(has(refused({"--compute", "int8"}), "--compute"));
}

}  // namespace
