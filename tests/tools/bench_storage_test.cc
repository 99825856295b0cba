// kvasir bench storage as a program uses it. Nothing here depends on how fast the machine is.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/tools/tiny_model.h"

namespace {
using namespace kvasir::test;
using Json = nlohmann::json;

std::vector<std::string> bench(const std::string& folder, const std::string& kib = "4,60",
                               const std::string& depth = "1,4") {
  return {"bench",   "storage", "--folder", folder, "--kib",       kib,
          "--depth", depth,     "-r",       "3",    "--mebibytes", "2"};
}

TEST_CASE("bench storage: a row per size and depth, with every figure above 0, and no file left") {
  const TempDir folder;
  const Json r = json_of([&] {
    auto command = bench(folder.root().string());
    command.push_back("--json");
    return command;
  }());
  REQUIRE(r["rows"].size() == 4);
  // Records of 520 bytes to a token of 512, to the end of a page.
  const uint64_t kReads[] = {8192, 8192, 65536, 65536};
  for (size_t i = 0; i < 4; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    CHECK(row["block_bytes"] == (i < 2 ? 4096 : 61440));
    CHECK(row["read_bytes"] == kReads[i]);
    CHECK(row["depth"] == (i % 2 ? 4 : 1));
    for (const char* name :
         {"tiered_bytes_per_second", "plain_bytes_per_second", "share_of_plain", "reads_at_a_time"})
      CHECK(row[name] > 0.0);
  }
  CHECK(r["fio"].get<std::string>().find("--bs=65536 --iodepth=4") != std::string::npos);
  CHECK(folder.list().empty());
}

TEST_CASE("bench storage: the table says what its columns are, and mistakes are named") {
  const TempDir folder;
  const Finished text = run_kvasir(bench(folder.root().string()));
  CHECK(text.code == 0);
  CHECK(text.out.find("of plain") != std::string::npos);
  CHECK(text.out.find("fio --name=plain --directory=" + folder.root().string()) !=
        std::string::npos);
  const auto says = [](const std::vector<std::string>& command, const std::string& what) {
    const Finished done = run_kvasir(command);
    CHECK(done.code == 2);
    CHECK(done.err.find(what) != std::string::npos);
  };
  says(bench(folder.root().string(), "0"), "--kib");
  says(bench(folder.root().string(), "4", "5000"), "--depth 5000: expected 1 to 4096");
  says(bench(folder.path("none")), "no such folder");
}

}  // namespace
