// Alternatives among options: which one decides, what the plugin gets, what the user is told; and
// groups that are wrong.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using kvasir::test::at;
using kvasir::test::check_says;
using kvasir::test::error_of;
using kvasir::test::Host;
using kvasir::test::search;
using kvasir::test::section;

constexpr auto kId = "org.test.alternatives";

OptionSetting set(const char* key, int64_t value, const Origin& origin) {
  return {key, value, origin};
}
Origin in_file(const char* name, uint32_t line) { return {Origin::Source::kFile, name, line, 1}; }
const Origin kEnvironment{Origin::Source::kEnvironment, "KVASIR_SET_SELECTOR_X", 0, 0};
const Origin kCommandLine{Origin::Source::kCommandLine, "--set selector.x", 0, 0};

struct Fixture {
  Host host;
  PluginRegistry registry{search({"good", "faulty"}), host.services};

  ResolvedOptions resolve(std::vector<OptionSetting> options, const std::string& id = kId) {
    const OpenPlugin plugin = registry.open(Kind::kSelector, id);
    return ResolvedOptions(*plugin.desc, section(Kind::kSelector, id, std::move(options)));
  }
  // What the plugin gets: "budget_tokens=9 alone=9".
  std::string delivered(std::vector<OptionSetting> options) {
    const ResolvedOptions resolved = resolve(std::move(options));
    std::string out;
    for (const kvasir_option& option : resolved.values()) {
      if (!out.empty()) out += ' ';
      out += option.key;
      out += '=';
      out += std::to_string(option.value.i);
    }
    return out;
  }
  std::string error(std::vector<OptionSetting> options, const std::string& id = kId) {
    return error_of([&] { resolve(std::move(options), id); });
  }
  ResolvedOptions::Explained line(std::vector<OptionSetting> options, const std::string& key) {
    const ResolvedOptions resolved = resolve(std::move(options));
    for (const auto& explained : resolved.explained())
      if (explained.key == key) return explained;
    FAIL("no line of ", key);
    return {};
  }
};

TEST_CASE("exactly one of the alternatives is delivered") {
  Fixture f;
  CHECK(f.delivered({}) == "budget_tokens=9 alone=9");
  CHECK(f.delivered({set("budget_tokens", 5, at(3))}) == "budget_tokens=5 alone=9");
  CHECK(f.delivered({set("budget_blocks", 5, at(3))}) == "budget_blocks=5 alone=9");
  CHECK(f.delivered({set("n_blocks", 5, at(3))}) == "budget_blocks=5 alone=9");
  CHECK(f.delivered({set("ratio", 5, at(3)), set("recent", 6, at(4))}) ==
        "ratio=5 recent=6 alone=9");
  CHECK(f.delivered({set("ratio", 5, at(3)), set("recent_share", 6, at(4))}) ==
        "ratio=5 recent_share=6 alone=9");
}

TEST_CASE("two in one place are an error that names both") {
  Fixture f;
  check_says(f.error({set("budget_tokens", 5, at(3)), set("n_blocks", 6, at(4))}),
             {"/dir/run.toml:4:1: n_blocks and budget_tokens (/dir/run.toml:3:1)", "keep one"});
  check_says(f.error({set("n_blocks", 6, at(4)), set("budget_tokens", 5, at(5))}),
             {"/dir/run.toml:5:1: budget_tokens and n_blocks (budget_blocks) (/dir/run.toml:4:1)"});
  for (const Origin& origin : {kEnvironment, kCommandLine})
    check_says(f.error({set("budget_tokens", 5, origin), set("ratio", 6, origin)}),
               {origin.name, "keep one"});
  check_says(
      f.error({set("ratio", 1, at(2)), set("recent", 5, at(3)), set("recent_share", 6, at(4))}),
      {"run.toml:4:1: recent_share and recent (/dir/run.toml:3:1)"});
}

TEST_CASE("what is said later decides, and both lines say so") {
  Fixture f;
  const OptionSetting preset = set("ratio", 5, in_file("preset.toml", 7));
  const OptionSetting mine = set("budget_tokens", 6, in_file("mine.toml", 2));
  CHECK(f.delivered({preset, mine}) == "budget_tokens=6 alone=9");
  CHECK(f.delivered({preset, set("budget_blocks", 6, kEnvironment)}) == "budget_blocks=6 alone=9");
  CHECK(f.delivered({set("budget_blocks", 6, kEnvironment), preset}) == "budget_blocks=6 alone=9");
  CHECK(f.delivered({set("ratio", 5, kCommandLine), set("budget_blocks", 6, kEnvironment)}) ==
        "ratio=5 alone=9");
  const auto loser = f.line({preset, mine}, "ratio");
  CHECK(loser.value == ResolvedOptions::kOverruled);
  CHECK(loser.origin == "preset.toml:7:1");
  check_says(loser.note, {"budget_tokens (mine.toml:2:1) decides"});
  check_says(f.line({preset, mine}, "budget_tokens").note,
             {"decides, not ratio (preset.toml:7:1)"});
  const auto unasked = f.line({preset}, "budget_tokens");
  CHECK(unasked.value == ResolvedOptions::kNotSet);
  check_says(unasked.note, {"ratio (preset.toml:7:1) decides"});
  CHECK(f.line({}, "ratio").value == ResolvedOptions::kNotSet);
}

TEST_CASE("what refines an alternative goes where that goes") {
  Fixture f;
  check_says(f.error({set("recent_share", 5, at(3))}),
             {"run.toml:3:1: recent_share goes with ratio, which is not set"});
  check_says(f.error({set("budget_tokens", 5, at(2)), set("recent_share", 5, at(3))}),
             {"recent_share goes with ratio"});
  const std::vector<OptionSetting> overruled = {
      set("ratio", 5, at(2)), set("recent_share", 6, at(3)), set("budget_tokens", 7, kCommandLine)};
  CHECK(f.delivered(overruled) == "budget_tokens=7 alone=9");
  CHECK(f.line(overruled, "recent_share").value == ResolvedOptions::kOverruled);
  check_says(f.line(overruled, "recent_share").note, {"goes with ratio", "budget_tokens"});
  // It does not stand in the way of the other one of its own group, either.
  std::vector<OptionSetting> with_recent = overruled;
  with_recent.push_back(set("recent", 8, at(4)));
  CHECK(f.delivered(with_recent) == "budget_tokens=7 recent=8 alone=9");
}

TEST_CASE("a group that cannot be resolved is a defect of the plugin") {
  Fixture f;
  const std::map<std::string, std::vector<std::string>> cases = {
      {"org.test.group_alone", {"budget_blocks", "only one of its group"}},
      {"org.test.group_required", {"budget_blocks", "REQUIRED and in a group"}},
      {"org.test.group_defaults", {"budget_blocks", "second of its group budget", "default"}},
      {"org.test.group_name", {"budget_blocks", "group is not of"}},
      {"org.test.with_nothing", {"recent_share", "goes with nothing"}},
      {"org.test.with_plain", {"recent_share", "goes with alone", "no group"}},
      {"org.test.with_itself", {"recent_share", "depends on another option"}},
  };
  for (const auto& [id, said] : cases) {
    CAPTURE(id);
    check_says(f.error({}, id), {"defect of the plugin"});
    check_says(f.error({}, id), said);
  }
}

TEST_CASE("a plugin that was built before groups came has none") {
  Fixture f;
  const OpenPlugin plugin = f.registry.open(Kind::kSelector, "org.test.older");
  const PluginSection mine = section(Kind::kSelector, "org.test.older", {set("stride", 5, at(2))});
  const ResolvedOptions options(*plugin.desc, mine);
  REQUIRE(options.values().size() == 2);
  CHECK(options.values()[0].value.i == 7);
  CHECK(options.values()[1].value.i == 5);
  Selector selector(plugin, f.host.services, options);
  CHECK_FALSE(selector.has_select());
  CHECK_FALSE(selector.has_evict_plan());
  CHECK_FALSE(selector.has_update());
  selector.read_limits();
  CHECK(selector.limits().max_units == 32);
}

}  // namespace
