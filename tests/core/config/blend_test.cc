// The table [blend]: what it sets, where it says it came from, what it refuses.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/core/config/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

std::string refusal(const std::string& toml) {
  return error_of([&] { parse(toml); });
}

}  // namespace

TEST_SUITE_BEGIN("core/config/blend");

TEST_CASE("every key is read, and what nobody sets keeps its default") {
  const BlendConfig plain = parse("").blend;
  CHECK(plain.mode == BlendMode::kRatio);
  CHECK(plain.ratio == 0.15);
  const StrategyConfig set = parse(
      "[blend]\nmode = 'oracle'\nratio = 0.3\nmin_ratio = 0\nnarrowing = 1\ncheck_layer = 2\n"
      "min_tokens = 9\nload_ahead = false\nchunks_behind_bos = false\n");
  CHECK(set.blend.mode == BlendMode::kOracle);
  CHECK(set.blend.ratio == 0.3);
  CHECK(set.blend.min_ratio == 0);
  CHECK(set.blend.narrowing == 1);
  CHECK(set.blend.check_layer == 2);
  CHECK(set.blend.min_tokens == 9);
  CHECK(plain.load_ahead);
  CHECK(!set.blend.load_ahead);
  CHECK(!set.blend.chunks_behind_bos);
  for (const std::string& mode : blend_mode_names())
    CHECK(name(parse("[blend]\nmode = '" + mode + "'\n").blend.mode) == mode);
}

TEST_CASE("--set wins over the file, and explain says where values came from") {
  const StrategyConfig set =
      parse("[blend]\nratio = 0.3\nmode = 'random'\n", {{"blend.ratio", "0.5", {}}});
  CHECK(set.blend.ratio == 0.5);
  std::string ratio, mode, layer;
  for (const ExplainLine& line : explain(set)) {
    if (line.key == "blend.ratio") ratio = line.value + " " + line.origin;
    if (line.key == "blend.mode") mode = line.value + " " + line.origin;
    if (line.key == "blend.check_layer") layer = line.value + " " + line.origin;
  }
  CHECK(ratio == "0.5 --set blend.ratio=0.5");
  CHECK(mode == "\"random\" test.toml:3:1");
  CHECK(layer == "1 default");
}

TEST_CASE("mistakes name the place and the remedy") {
  CHECK(refusal("[blend]\nratoi = 0.3\n") ==
        "test.toml:2:1: unknown key ratoi in [blend] (did you mean \"ratio\"?)");
  CHECK(refusal("[blend]\nratio = 1.5\n").find("test.toml:2:1: ratio = 1.5 is out of range 0..1") ==
        0);
  CHECK(refusal("[blend]\nratio = nan\n").find("out of range") != std::string::npos);
  CHECK(refusal("[blend]\nratio = 'all'\n").find("ratio must be a number, not a string") !=
        std::string::npos);
  CHECK(refusal("[blend]\nmode = 'reuze'\n").find("did you mean \"reuse\"?") != std::string::npos);
  CHECK(refusal("[blend]\nmode = 3\n").find("mode must be a string") != std::string::npos);
  CHECK(refusal("[blend]\ncheck_layer = 0\n").find("out of range 1..4095") != std::string::npos);
  CHECK(refusal("[blend]\ncheck_layer = 1.0\n").find("must be an integer") != std::string::npos);
  CHECK(refusal("[blend]\nchunks_behind_bos = 1\n").find("true or false") != std::string::npos);
  CHECK(refusal("[[blend]]\nratio = 0.5\n").find("write [blend]") != std::string::npos);
}
