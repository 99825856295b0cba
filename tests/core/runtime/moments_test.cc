// The table of abi/README.md that says when each function is called, held against the step loop.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/moments.h"

#include <fstream>
#include <regex>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::map<std::string, uint32_t> kMoments = {
    {"INPUT", KVASIR_MOMENT_INPUT},       {"APPENDED", KVASIR_MOMENT_APPENDED},
    {"ATTENDED", KVASIR_MOMENT_ATTENDED}, {"PROMPT_END", KVASIR_MOMENT_PROMPT_END},
    {"STEP_END", KVASIR_MOMENT_STEP_END}, {"BETWEEN_STEPS", KVASIR_MOMENT_BETWEEN_STEPS}};

// Lines "| `MOMENT` | `function` … | in prompts | in decoding |"; "no" says that it never comes.
Moments documented() {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/abi/README.md");
  REQUIRE(file);
  const std::regex pattern(R"(\| `([A-Z_]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|)");
  const std::regex function("`([a-z_]+)`");
  Moments out;
  for (std::string line; std::getline(file, line);) {
    std::smatch cells;
    if (!std::regex_match(line, cells, pattern) || !kMoments.contains(cells[1])) continue;
    const uint32_t moment = kMoments.at(cells[1]);
    const std::string calls = cells[2];
    for (std::sregex_iterator f(calls.begin(), calls.end(), function), end; f != end; ++f) {
      if (moment == KVASIR_MOMENT_BETWEEN_STEPS) {
        out.emplace((*f)[1], moment, KVASIR_PHASE_NONE);
        continue;
      }
      if (cells[3] != "no") out.emplace((*f)[1], moment, KVASIR_PHASE_PREFILL);
      if (cells[4] != "no") out.emplace((*f)[1], moment, KVASIR_PHASE_DECODE);
    }
  }
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/moments");

TEST_CASE("functions are called at the moments that the README's table says, and at no other") {
  Bench bench(8, 2);
  EngineOptions options;
  options.max_sequences = 2;
  options.max_step_tokens = 64;
  const auto engine = bench.engine(
      "[cache]\nblock_size = 8\nwindow_tokens = 8\nsink_tokens = 4\nchunk_size = 16\n"
      "bypass = false\n[selector]\nplugin = 'kvasir.test.moments'\n" +
          kRecording,
      options);
  recording_of(*engine).armed = 1;
  const SequenceId decodes = engine->open(), reads = engine->open();
  prefill(*engine, decodes, some_tokens(40));
  engine->begin_prompt(reads, 30);
  for (uint32_t i = 0; i < 20; ++i) {  // mixed steps: phases belong to the sequences
    const TokenId token[] = {static_cast<TokenId>(i)};
    std::vector<StepItem> items{{.seq = decodes, .tokens = token}};
    const auto piece = some_tokens(10, i + 2);
    if (i % 2 == 0 && engine->prompt_left(reads) > 0)
      items.push_back({.seq = reads, .tokens = piece});
    for (const ItemResult& result : engine->step(items)) REQUIRE(result.text().empty());
  }
  engine->truncate(decodes, 43);
  const Selector& selector = *engine->pipeline().selectors[0];
  Moments seen = *static_cast<const Moments*>(selector.extension(kMomentsExtension));
  for (const RecordedRun& run : recording_of(*engine).runs)
    seen.emplace("run", run.moment, run.in_prefill ? KVASIR_PHASE_PREFILL : KVASIR_PHASE_DECODE);
  const Moments table = documented();
  REQUIRE(table.size() >= 15);
  for (const auto& call : seen) {
    CAPTURE(std::get<0>(call));
    CAPTURE(std::get<1>(call));
    CAPTURE(std::get<2>(call));
    CHECK(table.contains(call));
  }
  for (const auto& call : table) {
    if (std::get<0>(call) == "score" || std::get<0>(call) == "mass") continue;  // of other plugins
    CAPTURE(std::get<0>(call));
    CAPTURE(std::get<1>(call));
    CAPTURE(std::get<2>(call));
    CHECK(seen.contains(call));
  }
}
