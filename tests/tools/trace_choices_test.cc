// kvasir trace replay -o: the choices in the file are those that the report counts.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "tests/tools/traced.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

// Replayed with choices, of which the file is read by its definition.
struct Chosen {
  Json report;
  File file;
  static File replayed(const Traced& t, const std::vector<std::string>& more, Json& report) {
    const std::string path = t.folder.path("choices");
    std::vector<std::string> command{"trace", "replay",   t.path, "-b",     "64", "--sink",
                                     "8",     "--window", "32",   "--json", "-o", path};
    command.insert(command.end(), more.begin(), more.end());
    report = json_of(command);
    return File(path);
  }
  Chosen(const Traced& t, const std::vector<std::string>& more) : file(replayed(t, more, report)) {}

  std::vector<int32_t> whole_numbers(const std::string& name) const {
    const Json& tensor = file.root[name];
    REQUIRE(tensor["dtype"] == "I32");
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    std::vector<int32_t> out((end - begin) / 4);
    std::memcpy(out.data(), file.data.data() + begin, end - begin);
    return out;
  }
  // [steps * kv heads] of a layer.
  std::vector<std::vector<int32_t>> lists(const std::string& strategy, uint32_t layer) const {
    const std::string name = strategy + ".layers." + std::to_string(layer) + ".";
    const auto ends = whole_numbers(name + "ends"), tokens = whole_numbers(name + "tokens");
    REQUIRE(ends.back() == static_cast<int32_t>(tokens.size()));
    std::vector<std::vector<int32_t>> out;
    for (int32_t begin = 0; const int32_t end : ends) {
      REQUIRE(begin <= end);
      out.emplace_back(tokens.begin() + begin, tokens.begin() + end);
      begin = end;
    }
    return out;
  }
};

}  // namespace

TEST_SUITE_BEGIN("tools/trace_choices");

TEST_CASE("trace replay -o: what each kv head attended to, by strategy and layer") {
  const Traced t;
  const Chosen chosen(t, {"-s", "dense", "-s", "oracle", "-s", "streaming"});
  const Json about =
      Json::parse(chosen.file.root["__metadata__"]["kvasir_choices"].get<std::string>());
  const size_t steps = about["steps"], context = about["context"], heads = about["n_kv_heads"];
  CHECK(about["trace"] == t.path);
  CHECK(steps == 5);
  CHECK(about["strategies"].size() == 3);
  CHECK_FALSE(chosen.file.root.contains("oracle.layers.0.ends"));  // dense
  const auto n_layers = chosen.report["layers"].get<uint32_t>();
  for (const Json& of_report : chosen.report["strategies"]) {
    const std::string name = of_report["strategy"];
    CAPTURE(name);
    double attended = 0;
    for (uint32_t layer = 1; layer < n_layers; ++layer) {
      const auto lists = chosen.lists(name, layer);
      REQUIRE(lists.size() == steps * heads);
      for (size_t i = 0; i < lists.size(); ++i) {
        const auto pos = static_cast<int32_t>(context + i / heads);
        const std::vector<int32_t>& list = lists[i];
        attended += static_cast<double>(list.size()) / static_cast<double>(lists.size());
        REQUIRE_FALSE(list.empty());
        CHECK(std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end());
        CHECK(list.front() == 0);
        CHECK(list.back() == pos);
        if (name == "dense") CHECK(list.size() == static_cast<size_t>(pos) + 1);
        for (int32_t at = 0; at <= pos && name != "dense"; ++at) {
          const bool is_in = std::binary_search(list.begin(), list.end(), at);
          if (at < 8 || at > pos - 32) CHECK(is_in);  // sink and window
        }
      }
    }
    CHECK(attended / (n_layers - 1) ==
          doctest::Approx(of_report["tokens_attended"].get<double>()).epsilon(1e-6));
  }
  const std::string path = t.folder.path("choices");
  const Finished again = run_kvasir({"trace", "replay", t.path, "-s", "oracle", "-o", path});
  CHECK(again.code == 2);
  CHECK(has(again.err, "--force overwrites it"));
  const Finished twice = run_kvasir(
      {"trace", "replay", t.path, "-s", "oracle", "-s", "oracle", "-o", path, "--force"});
  CHECK(twice.code == 2);
  CHECK(has(twice.err, "two strategies are called \"oracle\""));
}

TEST_SUITE_END();
