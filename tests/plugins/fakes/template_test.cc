// The templates that others copy, loaded and called. KVASIR_TEST_STRIDED names another build of the
// same plugin. SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/support/c_abi.h"

namespace {

using namespace kvasir::test::c_abi;

std::string template_path() {
  const char* other = std::getenv("KVASIR_TEST_STRIDED");
  return other != nullptr ? other : KVASIR_TEMPLATE;
}

TEST_CASE("template: every n-th candidate, of the range or of a list") {
  Host host(false);
  const auto f = format();
  const auto g = geometry(f);
  Plugin<kvasir_selector> plugin(host, template_path(), {{"stride", 3}});
  plugin.bind(g);
  kvasir_sel_limits limits{};
  limits.struct_size = sizeof limits;
  REQUIRE(plugin->limits(plugin.self(), &limits, plugin.err()) == KVASIR_OK);
  CHECK(limits.unit == KVASIR_UNIT_BLOCK);
  CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
  Step step(KVASIR_D2, 60, 1, 9);
  kvasir_sel_in in{};
  in.struct_size = sizeof in;
  Result whole(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &whole.selection, plugin.err()) == 0);
  CHECK(violation(whole.selection, 1, 1, 9) == "");
  CHECK(whole.row(0) == std::vector<uint32_t>{1, 4, 7});

  Result list(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
  list.selection.n_rows = 1;
  list.selection.row_offsets[0] = 0;
  list.selection.row_offsets[1] = 4;
  for (uint32_t i = 0; i < 4; ++i) list.selection.index[i] = 2 * i + 1;
  step.step.candidates = &list.selection;
  Result subset(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &subset.selection, plugin.err()) == 0);
  CHECK(subset.row(0) == std::vector<uint32_t>{1, 7});
}

TEST_CASE(
    "template: a small buffer is answered with the needed size and nothing written beyond it") {
  Host host(false);
  const auto f = format();
  const auto g = geometry(f);
  Plugin<kvasir_selector> plugin(host, template_path(), {{"stride", 2}});
  plugin.bind(g);
  Step step(KVASIR_D2, 60, 0, 10);
  kvasir_sel_in in{};
  Result result(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 2);
  CHECK(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) ==
        KVASIR_ERR_CAPACITY);
  CHECK(result.selection.needed == 5);
  CHECK(plugin.text() != "");
}

TEST_CASE("template: a host of another major version is refused with a sentence") {
  void* library = dlopen(template_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto entry =
      reinterpret_cast<decltype(&kvasir_plugin_entry)>(dlsym(library, "kvasir_plugin_entry"));
  Host host(false);
  kvasir_host stranger = *host.get();
  stranger.abi_major += 1;
  kvasir_request request{sizeof request, 0, nullptr};
  kvasir_err err{};
  err.struct_size = sizeof err;
  CHECK(entry(&stranger, &request, &err) == KVASIR_ERR_VERSION);
  CHECK(std::string(err.text) != "");
  CHECK(request.plugin == nullptr);
}

}  // namespace
