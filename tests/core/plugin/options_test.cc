// Options against a plugin's schema: conversion, defaults, aliases, and what is said about
// mistakes.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>

#include "core/plugin/option_schema.h"
#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using kvasir::test::at;
using kvasir::test::check_says;
using kvasir::test::error_of;
using kvasir::test::Host;
using kvasir::test::search;
using kvasir::test::section;

struct Fixture {
  Host host;
  PluginRegistry registry{search({"good", "faulty", "required"}), host.services};

  ResolvedOptions resolve(std::vector<OptionSetting> options,
                          const std::string& id = "org.test.options") {
    const OpenPlugin plugin = registry.open(Kind::kSelector, id);
    return ResolvedOptions(*plugin.desc, section(Kind::kSelector, id, std::move(options)));
  }
  std::string error(std::vector<OptionSetting> options,
                    const std::string& id = "org.test.options") {
    return error_of([&] { resolve(std::move(options), id); });
  }
};

const kvasir_option* find(const ResolvedOptions& options, const char* key) {
  for (const kvasir_option& o : options.values()) {
    if (std::strcmp(o.key, key) == 0) return &o;
  }
  return nullptr;
}

TEST_CASE("every option is delivered in schema order with its default, OPTIONAL ones are not") {
  Fixture f;
  const ResolvedOptions options = f.resolve({});
  std::string keys;
  for (const kvasir_option& o : options.values()) {
    keys += std::string(o.key) + " ";
    CHECK(o.is_set == 0);
  }
  CHECK(keys == "budget_tokens exact ratio method memory levels label ");
  CHECK(find(options, "budget_tokens")->value.i == 4096);
  CHECK(find(options, "ratio")->value.f == 0.5);
  CHECK(find(options, "method")->value.i == 1);
  REQUIRE(find(options, "levels")->value.n == 2);
  CHECK(find(options, "levels")->value.list[1] == 2);
  CHECK(options.explained().size() == 8);
  CHECK(options.explained()[0].origin == "default");
  CHECK(options.explained()[3].value == "\"max\"");
}

TEST_CASE("a plugin learns how late an option was said") {
  Fixture f;
  for (const auto& [source, is_set] : {std::pair{Origin::Source::kFile, 1u},
                                       {Origin::Source::kEnvironment, 2u},
                                       {Origin::Source::kCommandLine, 3u}}) {
    Origin origin = at(3);
    origin.source = source;
    const ResolvedOptions options = f.resolve({{"budget_tokens", int64_t{7}, origin}});
    CHECK(find(options, "budget_tokens")->is_set == is_set);
  }
}

TEST_CASE("every type is converted, and where it came from is kept") {
  Fixture f;
  const ResolvedOptions options = f.resolve({{"budget_tokens", int64_t{7}, at(3)},
                                             {"exact", false, at(4)},
                                             {"ratio", int64_t{1}, at(5)},
                                             {"method", std::string("softmax_sum"), at(6)},
                                             {"memory", std::string("1.5GiB"), at(7)},
                                             {"table", std::string("../t.bin"), at(8)},
                                             {"levels", std::vector<int64_t>{}, at(9)}});
  CHECK(find(options, "budget_tokens")->value.i == 7);
  CHECK(find(options, "budget_tokens")->value.type == KVASIR_OPTION_INT);
  CHECK(find(options, "budget_tokens")->is_set == 1);
  CHECK(find(options, "exact")->value.i == 0);
  CHECK(find(options, "ratio")->value.f == 1.0);
  CHECK(find(options, "method")->value.i == 2);
  CHECK(find(options, "memory")->value.i == 1610612736);
  CHECK(std::string(find(options, "table")->value.s) == "/t.bin");
  CHECK(find(options, "levels")->value.n == 0);
  CHECK(options.explained()[0].origin == "/dir/run.toml:3:1");
  check_says(options.explained()[2].note, {"deprecated", "say budget_tokens"});
  check_says(options.explained()[4].note, {"1610612736 bytes"});
}

TEST_CASE("a path of the command line is relative to the current directory") {
  Fixture f;
  const Origin flag{Origin::Source::kCommandLine, "--set selector.table=t.bin", 0, 0};
  const ResolvedOptions options = f.resolve({{"table", std::string("t.bin"), flag}});
  CHECK(find(options, "table")->value.s == (std::filesystem::current_path() / "t.bin").string());
}

TEST_CASE("a path that is an address stays as it is") {
  Fixture f;
  for (const std::string text : {"redis://host:6379/0?a=b", "redis+unix:///run/../s"})
    CHECK(find(f.resolve({{"table", text, at(8)}}), "table")->value.s == text);
  for (const std::string text : {"://host", "a/b://c", "C://x"}) {
    const ResolvedOptions options = f.resolve({{"table", text, at(8)}});
    CHECK(std::string(find(options, "table")->value.s).starts_with("/"));
  }
}

TEST_CASE("an alias counts as its key, a higher layer wins, two of one layer do not") {
  Fixture f;
  const ResolvedOptions alias = f.resolve({{"topk", int64_t{9}, at(3)}});
  CHECK(find(alias, "budget_tokens")->value.i == 9);
  check_says(alias.explained()[0].note, {"written as topk"});
  const Origin flag{Origin::Source::kCommandLine, "--set selector.topk=5", 0, 0};
  CHECK(find(f.resolve({{"budget_tokens", int64_t{9}, at(3)}, {"topk", int64_t{5}, flag}}),
             "budget_tokens")
            ->value.i == 5);
  CHECK(find(f.resolve({{"topk", int64_t{5}, flag}, {"budget_tokens", int64_t{9}, at(3)}}),
             "budget_tokens")
            ->value.i == 5);
  check_says(f.error({{"budget_tokens", int64_t{9}, at(3)}, {"topk", int64_t{5}, at(4)}}),
             {"/dir/run.toml:4:1", "topk", "budget_tokens", "run.toml:3:1", "keep one"});
}

TEST_CASE("a key from the environment has no case, one from a file has") {
  Fixture f;
  const Origin variable{Origin::Source::kEnvironment, "KVASIR_SET_SELECTOR_TOPK", 0, 0};
  CHECK(find(f.resolve({{"TOPK", int64_t{9}, variable}}), "budget_tokens")->value.i == 9);
  check_says(f.error({{"TOPK", int64_t{9}, at(3)}}), {"unknown option TOPK", "\"topk\""});
}

TEST_CASE("mistakes name the place, the key, the range and the nearest name") {
  Fixture f;
  struct Case {
    OptionSetting setting;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {{"budget_token", int64_t{1}, at(3)},
       {"run.toml:3:1", "unknown option budget_token", "org.test.options", "\"budget_tokens\""}},
      {{"zzzzzzzz", int64_t{1}, at(3)}, {"it has: budget_tokens, exact"}},
      {{"budget_tokens", int64_t{0}, at(3)}, {"budget_tokens = 0", "1..100000 tokens"}},
      {{"budget_tokens", int64_t{100001}, at(3)}, {"out of range"}},
      {{"budget_tokens", 64.0, at(3)}, {"must be an integer", "a float (64.0)"}},
      {{"budget_tokens", std::string("64"), at(3)}, {"must be an integer", "a string (\"64\")"}},
      {{"exact", int64_t{1}, at(3)}, {"must be true or false", "an integer"}},
      {{"ratio", 1.5, at(3)}, {"ratio = 1.5", "0.0..1.0"}},
      {{"ratio", std::numeric_limits<double>::quiet_NaN(), at(3)}, {"not finite"}},
      {{"ratio", true, at(3)}, {"must be a number", "a boolean"}},
      {{"method", std::string("men"), at(3)}, {"\"mean\", \"max\"", "did you mean \"mean\""}},
      {{"method", int64_t{1}, at(3)}, {"must be a string"}},
      {{"memory", std::string("8 gigs"), at(3)}, {"is no size", "\"8GiB\""}},
      {{"memory", int64_t{-1}, at(3)}, {"negative"}},
      {{"memory", 1.0, at(3)}, {"bytes", "a float"}},
      {{"table", std::string(), at(3)}, {"not empty"}},
      {{"table", std::string("a\0b", 3), at(3)}, {"zero byte"}},
      {{"levels", int64_t{3}, at(3)}, {"must be a list of integers"}},
      {{"levels", std::vector<int64_t>{1, 10}, at(3)}, {"levels = 10", "0..9"}},
      {{"label", int64_t{3}, at(3)}, {"must be a string", "an integer (3)"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.setting.key);
    const std::string error = f.error({c.setting});
    check_says(error, {"/dir/run.toml:3:1: "});
    check_says(error, c.said);
  }
}

TEST_CASE("an option left over from another plugin is set aside, and says who changed the plugin") {
  Fixture f;
  const OpenPlugin plugin = f.registry.open(Kind::kSelector, "org.test.options");
  PluginSection s = section(Kind::kSelector, "x", {{"temperature", int64_t{1}, at(3)}});
  s.plugin.origin = {Origin::Source::kCommandLine, "--set selector.plugin=x", 0, 0};
  const auto explained = ResolvedOptions(*plugin.desc, s).explained();
  REQUIRE(explained[0].key == "temperature");
  CHECK(explained[0].value == ResolvedOptions::kSetAside);
  CHECK(explained[0].origin == "/dir/run.toml:3:1");
  CHECK(explained[0].note.find("--set selector.plugin=x") != std::string::npos);
  s.options[0].origin = s.plugin.origin;  // said together: a mistake
  check_says(error_of([&] { ResolvedOptions(*plugin.desc, s); }), {"unknown option temperature"});
}

TEST_CASE("a required option that is missing is asked for at the line of the plugin") {
  Fixture f;
  check_says(f.error({}, "org.test.required"),
             {"/dir/run.toml:1:1", "budget_tokens", "tokens selected", "[selector]"});
  CHECK(find(f.resolve({{"topk", int64_t{3}, at(2)}}, "org.test.required"), "budget_tokens")
            ->value.i == 3);
}

TEST_CASE("a schema that is wrong is the plugin's defect, named by option") {
  Fixture f;
  struct Case {
    const char* id;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"org.test.schema_size", {"option 0", "struct_size is 8"}},
      {"org.test.schema_key", {"option 0", "key is missing"}},
      {"org.test.schema_type", {"option 0 (budget_tokens)", "type 77"}},
      {"org.test.schema_default", {"default is out of its range"}},
      {"org.test.schema_flags", {"REQUIRED and OPTIONAL"}},
      {"org.test.schema_twice", {"option 1", "exact is taken"}},
      {"org.test.schema_reserved", {"option 0", "plugin is taken"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.id);
    const std::string error = f.error({}, c.id);
    check_says(error, {c.id, "defect of the plugin"});
    check_says(error, c.said);
  }
}

TEST_CASE("schema tables of odd size or address are refused before they are read") {
  kvasir_desc desc{};
  desc.id = "org.test.none";
  desc.version = "1";
  desc.n_options = 3;
  check_says(error_of([&] { checked_schema(desc); }), {"3 options without a table"});
  kvasir_option_schema one{};
  desc.options = &one;
  desc.n_options = 4000000000u;
  check_says(error_of([&] { checked_schema(desc); }), {"4000000000 options"});
  desc.n_options = 1;
  desc.option_size = 12;
  check_says(error_of([&] { checked_schema(desc); }), {"option_size is 12"});
}

TEST_CASE("sizes are read in powers of 1024 and of 1000") {
  int64_t bytes = 0;
  const auto is = [&](const char* text, int64_t expected) {
    CAPTURE(text);
    CHECK(parse_bytes(text, bytes));
    CHECK(bytes == expected);
  };
  is("0", 0);
  is("17", 17);
  is("17B", 17);
  is("8GiB", int64_t{8} << 30);
  is("8 GiB", int64_t{8} << 30);
  is("0.5KiB", 512);
  is("2TB", 2000000000000);
  is("1MB", 1000000);
  for (const char* bad : {"", "GiB", "-1GiB", "8gib", "8 G", "1e400", "nan", "inf", "99999999TiB",
                          "8GiBs", "1 2", "0x10"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_bytes(bad, bytes));
  }
}

}  // namespace
