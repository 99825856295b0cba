// Environment and --set: precedence, spelling, and the message of every mistake.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/core/config/support.h"

namespace {

using namespace kvasir;
using kvasir::test::error_of;
using kvasir::test::parse;

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

constexpr const char* kFile = "[cache]\nwindow_tokens = 1\n[selector]\nplugin='q'\nbudget = 5\n";

TEST_CASE("the command line wins over the environment, which wins over the file") {
  CHECK(parse(kFile).cache.window_tokens.value == 1);
  const Variable variable("KVASIR_SET_CACHE_WINDOW_TOKENS", "2");
  const StrategyConfig by_environment = parse(kFile);
  CHECK(by_environment.cache.window_tokens.value == 2);
  CHECK(by_environment.cache.window_tokens.origin.text() == "KVASIR_SET_CACHE_WINDOW_TOKENS");
  CHECK(by_environment.cache.window_tokens.origin.source == Origin::Source::kEnvironment);
  const StrategyConfig by_flag = parse(kFile, {{"cache.window_tokens", "3", {}}});
  CHECK(by_flag.cache.window_tokens.value == 3);
  CHECK(by_flag.cache.window_tokens.origin.text() == "--set cache.window_tokens=3");
  CHECK(by_flag.cache.window_tokens.origin.source == Origin::Source::kCommandLine);
}

TEST_CASE("later overrides win, aliases included") {
  const StrategyConfig config =
      parse(kFile, {{"cache.window_tokens", "3", {}}, {"cache.n_local", "4", {}}});
  CHECK(config.cache.window_tokens.value == 4);
}

TEST_CASE("the value of an override is TOML, and a bare word is a string") {
  const auto value = [](const std::string& text) {
    return parse(kFile, {{"selector.x", text, {}}}).selectors[0].options.back().value;
  };
  CHECK(std::get<int64_t>(value("12")) == 12);
  CHECK(std::get<int64_t>(value("0x10")) == 16);
  CHECK(std::get<double>(value("0.5")) == 0.5);
  CHECK(std::get<bool>(value("true")));
  CHECK(std::get<std::string>(value("\"12\"")) == "12");
  CHECK(std::get<std::string>(value("'a b'")) == "a b");
  CHECK(std::get<std::string>(value("mean")) == "mean");
  CHECK(std::get<std::string>(value("8GiB")) == "8GiB");
  CHECK(std::get<std::string>(value("./a/b.so")) == "./a/b.so");
  CHECK(std::get<std::string>(value("2020-01-01")) == "2020-01-01");
  CHECK(std::get<std::vector<int64_t>>(value("[1, 2]")) == std::vector<int64_t>{1, 2});
}

TEST_CASE("an overridden plugin keeps the user's options and drops ours") {
  const StrategyConfig config =
      parse(kFile, {{"selector.plugin", "other", {}}, {"storage.plugin", "disk", {}}});
  CHECK(config.selectors[0].plugin.value == "other");
  CHECK(config.selectors[0].options.size() == 1);
  CHECK(config.storage.plugin.value == "disk");
  CHECK(config.storage.options.empty());
}

TEST_CASE("an overridden plugin forgets the file it was taken from") {
  const std::string file = "[selector]\nplugin='q'\npath='q.so'";
  CHECK_FALSE(parse(file, {{"selector.plugin", "o", {}}}).selectors[0].path);
  const StrategyConfig both =
      parse(file, {{"selector.path", "/o.so", {}}, {"selector.plugin", "o", {}}});
  CHECK(both.selectors[0].path->value == "/o.so");
}

TEST_CASE("environment names map to any table; the plugin is set before its options") {
  const Variable a("KVASIR_SET_REPRESENTATIVE_AGE", "3");
  const Variable b("KVASIR_SET_REPRESENTATIVE_PLUGIN", "mean");
  const StrategyConfig config = parse(kFile);
  REQUIRE(config.representative);
  CHECK(config.representative->plugin.value == "mean");
  CHECK(config.representative->options[0].key == "age");
}

TEST_CASE("a chain is addressed by number") {
  const std::string chain = "[[selector]]\nplugin='a'\n[[selector]]\nplugin='b'";
  const StrategyConfig config = parse(chain, {{"selector.1.k", "5", {}}});
  CHECK(config.selectors[0].options.empty());
  CHECK(config.selectors[1].options[0].key == "k");
  const Variable variable("KVASIR_SET_SELECTOR_0_PLUGIN", "z");
  CHECK(parse(chain).selectors[0].plugin.value == "z");
  CHECK(error_of([&] {
          parse(chain, {{"selector.k", "5", {}}});
        }).find("selector.0.k") != std::string::npos);
  CHECK(error_of([&] {
          parse(chain, {{"selector.2.k", "5", {}}});
        }).find("2 selector(s)") != std::string::npos);
}

TEST_CASE("mistakes name the flag and the remedy") {
  struct Mistake {
    Override o;
    std::vector<const char*> said;
  };
  const Mistake mistakes[] = {
      {{"window_tokens", "1", {}},
       {"--set window_tokens=1", "<table>.<key>", "cache.window_tokens"}},
      {{"cahce.window_tokens", "1", {}}, {"unknown table", "\"cache\""}},
      {{"cache.window_token", "1", {}}, {"--set cache.window_token=1", "\"window_tokens\""}},
      {{"cache.window_tokens", "many", {}}, {"must be an integer", "\"many\""}},
      {{"cache.window_tokens", "", {}}, {"empty"}},
      {{"cache.window_tokens", "-1", {}}, {"out of range"}},
      {{"cache.window_tokens", "[1", {}}, {"not valid TOML"}},
      {{"cache.window_tokens", "1\nx = 2", {}}, {"control characters"}},
      {{"cache.", "1", {}}, {"<table>.<key>"}},
      {{"selector.a.b", "1", {}}, {"<table>.<key>"}},
      {{"representative.x", "1", {}},
       {"[representative] names no plugin", "representative.plugin"}},
      {{"selector.plugin", "3", {}}, {"selector.plugin", "must be a string"}},
      {{"selector.x", "{a = 1}", {}}, {"is a table"}},
  };
  for (const Mistake& m : mistakes) {
    CAPTURE(m.o.key);
    const std::string error = error_of([&] { parse(kFile, {m.o}); });
    for (const char* piece : m.said) {
      INFO(error);
      CHECK(error.find(piece) != std::string::npos);
    }
  }
  const Variable variable("KVASIR_SET_CAHCE_WINDOW_TOKENS", "2");
  const std::string error = error_of([] { parse(kFile); });
  CHECK(error.find("KVASIR_SET_CAHCE_WINDOW_TOKENS") != std::string::npos);
  CHECK(error.find("\"cache\"") != std::string::npos);
}

}  // namespace
