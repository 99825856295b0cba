// kvasir bench as a program uses it: what must hold in the table of recall.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::json_of;
using Json = nlohmann::json;

TEST_CASE("bench recall: the exact choice bounds every strategy, and a random one is chance") {
  const Json report =
      json_of({"bench", "recall", "-c", "1024", "-b", "128", "-n", "8", "--layers", "3", "--json"});
  std::set<std::string> names;
  for (const Json& r : report["strategies"]) {
    const std::string name = r["strategy"];
    CAPTURE(name);
    names.insert(name);
    const double captured = r["captured_mass"], best = r["best_mass"], random = r["random_mass"];
    CHECK(r["fallbacks"] == 0);
    CHECK(captured <= best + 1e-9);
    if (name.starts_with("oracle") || name == "dense")
      CHECK(captured == doctest::Approx(best).epsilon(1e-3));
    else if (name.starts_with("random") || name == "streaming")  // both choose without looking
      CHECK(std::abs(captured - random) < 0.06);
    else if (name != "duoattention")  // its heads attend to all, or to sink and window alone
      CHECK(captured > random + 0.05);
  }
  for (const char* name : {"dense", "oracle", "random", "quest", "snapkv", "h2o", "infinigen"})
    CHECK(names.contains(name));
  // Beside 16 + 64 forced tokens, outward to whole blocks of 16 where blocks are chosen.
  for (const Json& r : report["strategies"])
    if (const std::string name = r["strategy"]; name == "oracle/token" || name == "infinigen")
      CHECK(r["tokens_attended"] == doctest::Approx(16 + 64 + 128).epsilon(1e-6));
}

}  // namespace
