// Finding and opening plugins: search order, ids, paths, and what a bad plugin is told.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/core/plugin/support.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;
using kvasir::test::check_says;
using kvasir::test::error_of;
using kvasir::test::Host;
using kvasir::test::plugin_dir;
using kvasir::test::search;
using kvasir::test::TempDir;
using Verdict = PluginFile::Verdict;

const PluginFile* find_file(const PluginRegistry& registry, const std::string& name) {
  for (const PluginFile& file : registry.files()) {
    if (file.path.ends_with("/" + name)) return &file;
  }
  return nullptr;
}

TEST_CASE("a plugin is found by id, by bare id, and by path") {
  Host host;
  PluginRegistry registry(search({"good"}), host.services);
  const std::string path = plugin_dir("good") + "/test_selector.so";
  const OpenPlugin by_id = registry.open(Kind::kSelector, "org.test.selector");
  CHECK(std::string(by_id.desc->id) == "org.test.selector");
  CHECK(by_id.path == std::filesystem::canonical(path));
  CHECK(std::string(registry.open(Kind::kSelector, path).desc->id) == "org.test.selector");
  CHECK(std::string(registry.open(Kind::kSelector, "selector", path).desc->id) ==
        "org.test.selector");
  CHECK(std::string(registry.open(Kind::kStorage, "storage").desc->id) == "org.test.storage");
  CHECK(std::string(registry.open_any("storage").desc->id) == "org.test.storage");
}

TEST_CASE("a bare id means ours first, and is never guessed between two") {
  Host host;
  PluginRegistry registry(search({"good"}), host.services);
  CHECK(std::string(registry.open(Kind::kSelector, "selector").desc->id) == "kvasir.selector");
  check_says(error_of([&] { registry.open(Kind::kSelector, "twin"); }),
             {"ambiguous", "org.test.a.twin", "org.test.b.twin", "full id"});
}

TEST_CASE("the same id on a lower level is shadowed, and this is logged") {
  Host host;
  PluginRegistry registry(search({"good", "lower"}), host.services);
  const PluginFile* lower = find_file(registry, "test_lower_selector.so");
  REQUIRE(lower);
  CHECK(lower->verdict == Verdict::kShadowed);
  check_says(lower->reason, {"test_selector.so", "level good"});
  CHECK(registry.open(Kind::kSelector, "org.test.selector").path.ends_with("test_selector.so"));
  REQUIRE_FALSE(host.log.empty());
  check_says(host.log[0].text, {"test_lower_selector.so", "shadowed"});

  PluginRegistry reversed(search({"lower", "good"}), host.services);
  CHECK(
      reversed.open(Kind::kSelector, "org.test.selector").path.ends_with("test_lower_selector.so"));
}

TEST_CASE("the same id twice on one level is an error when it is used, and only then") {
  Host host;
  PluginRegistry registry(search({"duplicates", "good"}), host.services);
  CHECK(find_file(registry, "test_duplicate_a.so")->verdict == Verdict::kRefused);
  CHECK(find_file(registry, "test_duplicate_b.so")->verdict == Verdict::kRefused);
  CHECK(registry.open(Kind::kSelector, "org.test.selector").desc);
  check_says(error_of([&] { registry.open(Kind::kSelector, "org.test.duplicate"); }),
             {"test_duplicate_a.so", "test_duplicate_b.so", "remove one"});
  const std::string path = plugin_dir("duplicates") + "/test_duplicate_b.so";
  CHECK(registry.open(Kind::kSelector, "org.test.duplicate", path).path.ends_with("_b.so"));
}

TEST_CASE("a directory reached twice is not a duplicate of itself") {
  Host host;
  const TempDir dir;
  std::filesystem::create_directory_symlink(plugin_dir("good"), dir.path("link"));
  PluginSearch twice;
  twice.levels.push_back({"a", {plugin_dir("good"), plugin_dir("good") + "/../good"}});
  twice.levels.push_back({"b", {dir.path("link")}});
  const PluginRegistry registry(twice, host.services);
  const PluginRegistry once(search({"good"}), host.services);
  CHECK(registry.files().size() == once.files().size());
}

TEST_CASE("what is not found says where it was looked for, and what is near") {
  Host host;
  PluginRegistry registry(search({"good", "faulty"}), host.services);
  check_says(error_of([&] { registry.open(Kind::kSelector, "org.test.selectro"); }),
             {"\"org.test.selectro\"", "selector", "did you mean \"org.test.selector\"",
              plugin_dir("good"), "level good", "level faulty"});
  check_says(error_of([&] { registry.open(Kind::kStorage, "storge"); }), {"\"storage\""});
  check_says(error_of([&] { registry.open(Kind::kSelector, "test_selector.so"); }),
             {"bare file name", "\"./test_selector.so\""});
  check_says(error_of([&] { registry.open(Kind::kSelector, "./nothing.so"); }),
             {"nothing.so", "not found"});
  check_says(error_of([&] { registry.open(Kind::kSelector, "a/b"); }), {"ending in .so"});
  check_says(error_of([&] { registry.open(Kind::kSelector, ""); }), {"no selector plugin"});
  check_says(error_of([&] {
               registry.open(Kind::kSelector, "org.test.nothing",
                             plugin_dir("good") + "/test_selector.so");
             }),
             {"test_selector.so", "\"org.test.nothing\""});
  PluginRegistry empty({}, host.services);
  check_says(error_of([&] { empty.open(Kind::kSelector, "x"); }), {"No plugin directory"});
}

TEST_CASE("the wrong kind is refused by name") {
  Host host;
  PluginRegistry registry(search({"good"}), host.services);
  check_says(error_of([&] { registry.open(Kind::kStorage, "org.test.selector"); }),
             {"wrong kind", "a storage is needed", "org.test.selector is a selector"});
}

TEST_CASE("a directory that cannot be read is a warning, not an error") {
  Host host;
  PluginSearch missing;
  missing.levels.push_back({"--plugin-dir", {"/nonexistent/plugins"}});
  const PluginRegistry registry(missing, host.services);
  CHECK(registry.files().empty());
  REQUIRE(host.log.size() == 1);
  check_says(host.log[0].text, {"/nonexistent/plugins", "--plugin-dir"});
}

TEST_CASE("a refused file is told when its id is asked for") {
  Host host;
  PluginRegistry registry(search({"faulty"}), host.services);
  const PluginFile* file = find_file(registry, "test_newer_minor.so");
  REQUIRE(file);
  CHECK(file->verdict == Verdict::kRefused);
  CHECK_FALSE(registry.files().empty());
  check_says(error_of([&] { registry.open(Kind::kSelector, file->path); }),
             {"test_newer_minor.so", "0.99"});
}

TEST_CASE("what goes wrong while opening is said with file, cause and remedy") {
  Host host;
  PluginRegistry registry(search({"faulty"}), host.services);
  struct Case {
    const char* name;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"no_symbol", {"does not export kvasir_plugin_entry", "plugin.map"}},
      {"entry_fails", {"KVASIR_ERR_VERSION", "the moon is in the wrong phase"}},
      {"entry_silent", {"KVASIR_ERR_INTERNAL", "gave no reason", "defect"}},
      {"other_minor", {"minor 9", "offers 2 to 2"}},
      {"null_table", {"no plugin table"}},
      {"small_table", {"16 bytes", "sizeof(kvasir_plugin)"}},
      {"null_desc", {"describe(0)", "returned nothing"}},
      {"small_desc", {"64 bytes", "sizeof(kvasir_desc)"}},
      {"count_zero", {"0 plugins", "lists 1"}},
      {"count_many", {"4000000000 plugins"}},
      {"other_id", {"org.test.another_id", "the note does not list"}},
      {"other_kind", {"of kind storage", "the note does not list"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const std::string id = std::string("org.test.") + c.name;
    const std::string error = error_of([&] { registry.open(Kind::kSelector, id); });
    check_says(error, {std::string("test_") + c.name + ".so", id + " 1.2.3"});
    check_says(error, c.said);
  }
}

TEST_CASE("what the loader itself refuses is told in its own words") {
  Host host;
  const TempDir dir;
  const std::string good = plugin_dir("good") + "/test_selector.so";
  std::string bytes(std::filesystem::file_size(good), '\0');
  std::ifstream(good, std::ios::binary).read(bytes.data(), static_cast<long>(bytes.size()));
  // Asks for a library that does not exist: the name of libc in the string table is changed.
  const size_t libc = bytes.find("libc.so.6");
  REQUIRE(libc != std::string::npos);
  bytes.replace(libc, 9, "libx.so.6");
  PluginRegistry registry({}, host.services);
  check_says(error_of([&] { registry.open(Kind::kSelector, dir.write("needy.so", bytes)); }),
             {"needy.so", "cannot be loaded", "libx.so.6"});
}

TEST_CASE("ids lists what could be opened, by kind") {
  Host host;
  const PluginRegistry registry(search({"good", "faulty", "duplicates"}), host.services);
  CHECK(registry.ids(Kind::kStorage) == std::vector<std::string>{"org.test.storage"});
  const auto selectors = registry.ids(Kind::kSelector);
  CHECK(std::find(selectors.begin(), selectors.end(), "org.test.selector") != selectors.end());
  CHECK(std::find(selectors.begin(), selectors.end(), "org.test.duplicate") == selectors.end());
}

TEST_CASE("a plugin may be open in two registries, and outlive one") {
  Host host;
  PluginRegistry kept(search({"good"}), host.services);
  OpenPlugin first = kept.open(Kind::kSelector, "org.test.selector");
  {
    PluginRegistry passing(search({"good"}), host.services);
    CHECK(passing.open(Kind::kSelector, "org.test.selector").table == first.table);
  }
  CHECK(first.table->count() == 1);
}

}  // namespace
