// kvasir bench weights as a program uses it. Nothing here depends on how fast the machine is.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>
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

std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> out = {"bench", "weights", "-r", "2",      "--mebibytes",
                                  "1",     "-t",      "2",  "--n-in", "512"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST_CASE(
    "bench weights: a row per type and number of rows, whose figures follow from each other") {
  const Json r = json_of(small({"--rows", "1,3,32", "-o", "json"}));
  CHECK(r["limits"]["threads"] == 2);
  CHECK(r["limits"]["samples"] == 2);
  // Bits per weight of the types that lie as in the file, as the format has them.
  const std::map<std::string, double> bits = {
      {"F32", 32}, {"Q8_0", 8.5}, {"Q5_0", 5.5}, {"IQ4_NL", 4.5}, {"Q4_0", 4.5}};
  std::map<std::string, int> n_of;
  for (const Json& row : r["rows"]) {
    CAPTURE(row.dump());
    const std::string type = row["type"];
    ++n_of[type];
    const double n_rows = row["n_rows"], n_out = row["n_out"], seconds = row["seconds"];
    CHECK(seconds > 0.0);
    CHECK(row["multiply_adds_per_second"].get<double>() ==
          doctest::Approx(n_rows * 512 * n_out / seconds));
    CHECK(row["bytes_per_second"].get<double>() ==
          doctest::Approx(row["bytes"].get<double>() / seconds));
    CHECK(row["of_read"].get<double>() ==
          doctest::Approx(row["bytes_per_second"].get<double>() /
                          r["limits"]["read_bytes_per_second"].get<double>()));
    const double weight_bytes = row["bytes"].get<double>() - 4 * n_rows * (512 + n_out);
    CHECK(weight_bytes <= 1 << 20);
    if (n_rows <= 8) CHECK(weight_bytes > 0.9 * (1 << 20));
    if (bits.count(type)) CHECK(8 * weight_bytes / (512 * n_out) == doctest::Approx(bits.at(type)));
    CHECK((row["compute"] == "int8") == (type[0] == 'Q' || type[0] == 'I'));
  }
  CHECK(n_of.size() == 11);
  for (const auto& [type, n] : n_of) CHECK_MESSAGE(n == 3, type);
}

TEST_CASE("bench weights: the types asked for, as a table") {
  const Finished done = run_kvasir(small({"--type", "q4_k,f16", "--rows", "1"}));
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "| type | compute | rows |"));
  CHECK(has(done.out, "| Q4_K | int8 "));
  CHECK(has(done.out, "| F16 "));
  CHECK_FALSE(has(done.out, "Q8_0"));
}

TEST_CASE("bench weights: what cannot be measured is refused") {
  const auto refused = [](const std::vector<std::string>& more, const std::string& why) {
    const Finished done = run_kvasir(small(more));
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, why));
  };
  refused({"--type", "q3_k"}, "--type q3_k: expected f32, f16, bf16, q8_0");
  refused({"--type", "q4_k_m"}, "--type q4_k_m: expected");
  refused({"--rows", "0"}, "--rows");
  const Finished odd = run_kvasir({"bench", "weights", "--type", "q6_k", "--n-in", "96"});
  CHECK(odd.code == 2);
  CHECK(has(odd.err, "--n-in 96: Q6_K needs a multiple of 256"));
}

}  // namespace
