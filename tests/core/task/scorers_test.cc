// Scorers: the published table from the published answers, and rules on answers made by hand.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/scorers.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/data.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;

double score_of(Scorer scorer, const std::string& prediction,
                const std::vector<std::string>& references) {
  return score(scorer, prediction, references);
}

struct Published {
  const char* model;
  double kv_retrieval, passkey;  // percent
};

TEST_SUITE_BEGIN("core/task/scorers");

// InfiniteBench's README, and the answers it was computed from. One of the 500 lines of
// yarn-mistral's kv_retrieval has no line end.
KVASIR_DATA_TEST_CASE("the published table of InfiniteBench comes out of the published answers") {
  KVASIR_REQUIRE_DATA(data);
  for (const Published& row :
       {Published{"gpt4", 89.00, 100.00}, Published{"kimi", 53.60, 98.14},
        Published{"claude2", 65.40, 97.80}, Published{"yarn-mistral", 0.00, 92.71}}) {
    for (const Scorer scorer : {Scorer::kKvRetrieval, Scorer::kPasskey}) {
      CAPTURE(row.model);
      CAPTURE(std::string(name(scorer)));
      std::ifstream file(data / "golden/infinitebench-preds" /
                         (std::string(row.model) + "." + name(scorer) + ".jsonl"));
      REQUIRE(file.good());
      double sum = 0;
      size_t n = 0;
      for (std::string line; std::getline(file, line); ++n) {
        const auto answer = nlohmann::json::parse(line);
        const std::vector<std::string> wanted = {answer.at("ground_truth")};
        sum += score(scorer, answer.at("prediction").get<std::string>(), wanted);
      }
      CHECK(n == (scorer == Scorer::kPasskey ? 590 : 500));
      const double published = scorer == Scorer::kPasskey ? row.passkey : row.kv_retrieval;
      CHECK(std::round(1e4 * sum / static_cast<double>(n)) == std::round(100 * published));
    }
  }
}

TEST_CASE("a pass key is the first run of digits, as a string") {
  CHECK(score_of(Scorer::kPasskey, "The pass key is 04721.", {"04721"}) == 1);
  CHECK(score_of(Scorer::kPasskey, "4721", {"04721"}) == 0);
  CHECK(score_of(Scorer::kPasskey, "1. The pass key is 04721", {"04721"}) == 0);
  CHECK(score_of(Scorer::kPasskey, "047210", {"04721"}) == 0);
  CHECK(score_of(Scorer::kPasskey, "", {"04721"}) == 0);
}

TEST_CASE("a value is found as a whole word between the marks of JSON and of sentences") {
  CHECK(score_of(Scorer::kKvRetrieval, "{\"key\": \"ab-1\"}", {"ab-1"}) == 1);
  CHECK(score_of(Scorer::kKvRetrieval, "it is ab-1!", {"ab-1"}) == 1);
  CHECK(score_of(Scorer::kKvRetrieval, "ab-12", {"ab-1"}) == 0);
  CHECK(score_of(Scorer::kKvRetrieval, "(ab-1)", {"ab-1"}) == 0);  // no mark of theirs
}

TEST_CASE("a needle's keyword is worth all, else a fifth of the closeness") {
  const std::vector<std::string> reference = {"eat a plum", "plum"};
  CHECK(score_of(Scorer::kNeedle, "You should eat a plum there", reference) == 1);
  // "eatapear" to "eataplum": three characters of eight differ.
  CHECK(score_of(Scorer::kNeedle, "eat a pear", reference) == doctest::Approx(0.2 * 5 / 8));
  CHECK(score_of(Scorer::kNeedle, "", reference) == 0);
  CHECK(score_of(Scorer::kNeedle, "\u5317\u4eac", {"\u5357\u4eac"}) == doctest::Approx(0.1));
}

TEST_CASE("RULER counts the references that occur, whatever the case") {
  CHECK(score_of(Scorer::kStringAll, "VAR abc, XYZ", {"ABC", "xyz", "q"}) ==
        doctest::Approx(2.0 / 3));
  CHECK(score_of(Scorer::kStringPart, "VAR abc", {"ABC", "q"}) == 1);
  CHECK(score_of(Scorer::kStringPart, "none", {"ABC", "q"}) == 0);
  CHECK(score_of(Scorer::kStringAll, "text", {}) == 0);
}

TEST_CASE("edit distances are those of the recursion") {
  const std::vector<std::string> words = {"", "a", "ab", "kitten", "sitting", "aabb", "bbaa"};
  // By its definition, in exponential time.
  const std::function<size_t(std::string_view, std::string_view)> slow =
      [&](std::string_view a, std::string_view b) -> size_t {
    if (a.empty() || b.empty()) return a.size() + b.size();
    return std::min({slow(a.substr(1), b.substr(1)) + (a[0] != b[0]), slow(a.substr(1), b) + 1,
                     slow(a, b.substr(1)) + 1});
  };
  for (const std::string& a : words)
    for (const std::string& b : words) CHECK(edit_distance(a, b) == slow(a, b));
}

TEST_CASE("an unknown scorer is an error with the nearest name") {
  CHECK(scorer_by_name("needle", "--scorer") == Scorer::kNeedle);
  const std::string message = test::error_of([] { scorer_by_name("kv_retreival", "--scorer"); });
  CHECK(message.find("did you mean kv_retrieval?") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
