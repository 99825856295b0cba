// The fakes go through the core's own door: found by their note, options from TOML, needs against
// provides, limits and layout after bind.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;

struct Fixture {
  test::Host host;
  PluginRegistry registry{test::search({"fake", "templates"}), host.services};

  Pipeline build(const std::string& selector) {
    return build_pipeline(parse_strategy("[storage]\nplugin = 'kvasir.test.async_storage'\n"
                                         "[attention]\nplugin = 'kvasir.test.bad_attention'\n" +
                                             selector,
                                         "/dir/run.toml", {}, {}),
                          registry, host.services);
  }
};

TEST_CASE("every fake is usable by its note alone") {
  Fixture f;
  CHECK(f.registry.files().size() == 20);
  for (const PluginFile& file : f.registry.files()) {
    CAPTURE(file.path);
    CHECK_MESSAGE(file.verdict == PluginFile::Verdict::kUsable, file.reason);
    CHECK(file.ids.size() == 1);
  }
}

TEST_CASE("selectors whose needs are met are created with options from TOML") {
  Fixture f;
  for (const char* selector :
       {"[selector]\nplugin = 'kvasir.test.calls'\nlists = 'mixed'\nweight = 1.5\n",
        "[selector]\nplugin = 'kvasir.test.draws'\nrefuse_every = 3\n",
        "[selector]\nplugin = 'kvasir.test.bad_selector'\nfault = 'nan_weight'\nwhere = 'select'\n",
        "[selector]\nplugin = 'org.example.strided'\nstride = 2\n",
        "[[selector]]\nplugin = 'kvasir.test.bad_selector'\n"
        "[[selector]]\nplugin = 'kvasir.test.draws'\n"}) {
    CAPTURE(selector);
    const Pipeline pipeline = f.build(selector);
    CHECK(!pipeline.selectors.empty());
  }
}

TEST_CASE("a need that nobody provides is refused before anything is created") {
  Fixture f;
  const std::string text =
      test::error_of([&] { f.build("[selector]\nplugin = 'kvasir.test.told'\n"); });
  test::check_says(text, {"kvasir.test.told", "attention mass", "/dir/run.toml:6:1"});
}

TEST_CASE("an option out of its range is refused with its line") {
  Fixture f;
  const std::string text =
      test::error_of([&] { f.build("[selector]\nplugin = 'org.example.strided'\nstride = 0\n"); });
  test::check_says(text, {"stride", "/dir/run.toml:7:1"});
}

}  // namespace
