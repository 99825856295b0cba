// A whole strategy: plugins are checked against each other before any of them is created.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/pipeline.h"

#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using kvasir::test::at;
using kvasir::test::check_says;
using kvasir::test::error_of;
using kvasir::test::Host;
using kvasir::test::search;

struct Fixture {
  Host host;
  PluginRegistry registry{search({"good", "needs", "faulty"}), host.services};

  Pipeline build(const std::string& toml) {
    return build_pipeline(parse_strategy(toml, "/dir/run.toml", {}, {}), registry, host.services);
  }
  std::string error(const std::string& toml) {
    return error_of([&] { build(toml); });
  }
};

const std::string kBase =
    "[storage]\nplugin = 'org.test.storage'\n[attention]\nplugin = 'attention'\n";

std::string with_selector(const std::string& id, const std::string& more = "") {
  return kBase + "[selector]\nplugin = '" + id + "'\n" + more;
}

TEST_CASE("a strategy becomes instances, with everything explained") {
  Fixture f;
  const Pipeline p = f.build(with_selector("org.test.needs_scores", "topk = 7\n") +
                             "[representative]\nplugin = 'representative'\n");
  REQUIRE(p.selectors.size() == 1);
  CHECK(p.selectors[0]->id() == "org.test.needs_scores");
  CHECK(p.representative->id() == "org.test.representative");
  CHECK(p.storage->id() == "org.test.storage");
  CHECK(p.attention->id() == "kvasir.attention");
  REQUIRE(p.explained.size() == 4);
  CHECK(p.explained[0].options[0].value == "7");
  CHECK(p.explained[0].options[0].origin == "/dir/run.toml:7:1");
  CHECK(p.strategy.name == "run");
  CHECK(f.host.log.empty());
}

TEST_CASE("a chain of selectors is built in order") {
  Fixture f;
  const Pipeline p = f.build(kBase +
                             "[[selector]]\nplugin='org.test.selector'\n"
                             "[[selector]]\nplugin='kvasir.selector'\n");
  REQUIRE(p.selectors.size() == 2);
  CHECK(p.selectors[1]->id() == "kvasir.selector");
}

TEST_CASE("plugins that do not fit are refused with both lines") {
  Fixture f;
  struct Case {
    std::string toml;
    std::vector<std::string> said;
  };
  const std::string f16 =
      "[storage]\nplugin='storage'\n[attention]\nplugin='only_f16'\n[selector]\nplugin='selector'"
      "\n";
  const Case cases[] = {
      {with_selector("needs_scores"),
       {"[selector] plugin = \"needs_scores\" (/dir/run.toml:6:1) needs scores", "add one"}},
      {with_selector("needs_mass"),
       {"needs_mass\" (/dir/run.toml:6:1) needs attention mass",
        "[attention] plugin = \"attention\" (/dir/run.toml:4:1) provides none"}},
      {with_selector("needs_tokens"), {"single tokens", "/dir/run.toml:4:1"}},
      {with_selector("needs_future"), {"does not know", "needs bit 40", "update the host"}},
      {with_selector("own_threads"), {"threads of its own", "only a storage"}},
      {f16, {"reads K and V of f16", "holds f32", "/dir/run.toml:4:1", "/dir/run.toml:2:1"}},
      {kBase, {"names no selector"}},
      {"[selector]\nplugin='selector'\n[storage]\nplugin='storage'\n", {"names no attention"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.toml);
    check_says(f.error(c.toml), c.said);
  }
}

TEST_CASE(
    "errors about a plugin start with the line that names it, errors in options with theirs") {
  Fixture f;
  CHECK(f.error(with_selector("nothing")).rfind("/dir/run.toml:6:1: no plugin \"nothing\"", 0) ==
        0);
  CHECK(f.error(with_selector("no_symbol")).rfind("/dir/run.toml:6:1: ", 0) == 0);
  CHECK(f.error(with_selector("schema_key")).rfind("/dir/run.toml:6:1: ", 0) == 0);
  CHECK(f.error(with_selector("org.test.options", "topk = 'x'\n"))
            .rfind("/dir/run.toml:7:1: topk must be an integer", 0) == 0);
  const std::string refused = f.error(with_selector("org.test.refused", "fault = 'create'\n"));
  check_says(refused, {"/dir/run.toml:6:1: ", "I do not want to"});
}

TEST_CASE("options are checked before anything is created") {
  Fixture f;
  // The selector would refuse to be created, but the storage's option is wrong: that comes first.
  const std::string error = f.error(
      "[selector]\nplugin='org.test.refused'\nfault='create'\n"
      "[storage]\nplugin='storage'\nfault=3\n[attention]\nplugin='attention'\n");
  check_says(error, {"/dir/run.toml:6:1: fault must be a string"});
}

TEST_CASE("a representative nobody asks and a deprecated option are warned about") {
  Fixture f;
  f.build(with_selector("org.test.options", "ratio = 0.25\n") +
          "[representative]\nplugin = 'representative'\n");
  REQUIRE(f.host.log.size() == 2);
  check_says(f.host.log[0].text, {"[representative]", "no selector uses scores"});
  check_says(f.host.log[1].text, {"/dir/run.toml:7:1", "ratio", "deprecated", "say budget_tokens"});
}

}  // namespace
