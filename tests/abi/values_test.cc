// Named constants of the ABI: distinct within each family, masks made of single bits, needs and
// provides at equal places; and the layout of every field is held.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <kvasir/kvasir.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string all_headers() {
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::path(KVASIR_SOURCE_DIR) / "abi" / "kvasir"))
    if (entry.path().extension() == ".h") text += read_text(entry.path()) + "\n\n";
  return text;
}

struct Constant {
  std::string name;
  int64_t value;
};

// Runs of lines without a blank one between them: a family of constants each.
std::vector<std::vector<Constant>> families() {
  static const std::regex definition(
      R"(^#define (KVASIR_[A-Z0-9_]+) \(?(?:UINT64_C\(1\) << (\d+)|(-?\d+|0x[0-9a-f]+)u?)\)?)");
  std::vector<std::vector<Constant>> found(1);
  std::istringstream lines(all_headers());
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.empty() && !found.back().empty()) found.emplace_back();
    if (!std::regex_search(line, match, definition)) continue;
    const int64_t value =
        match[2].matched ? int64_t{1} << std::stoi(match[2]) : std::stoll(match[3], nullptr, 0);
    found.back().push_back({match[1], value});
  }
  return found;
}

bool starts_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  for (const auto& prefix : prefixes)
    if (name.starts_with(prefix)) return true;
  return false;
}

TEST_CASE("no two constants of a family have one value") {
  size_t n_constants = 0;
  for (const auto& family : families()) {
    std::map<int64_t, std::string> seen;
    n_constants += family.size();
    if (!family.empty() && family[0].name == "KVASIR_ABI_MAJOR") continue;
    for (const auto& constant : family) {
      const auto [at, fresh] = seen.emplace(constant.value, constant.name);
      CHECK_MESSAGE(fresh, constant.name, " equals ", at->second);
    }
  }
  CHECK(n_constants > 110);  // the pattern still finds them
}

TEST_CASE("constants that are combined are single bits") {
  const std::vector<std::string> masks = {"KVASIR_CAP_",
                                          "KVASIR_NEED_",
                                          "KVASIR_PROVIDE_",
                                          "KVASIR_CPU_",
                                          "KVASIR_LAYOUT_",
                                          "KVASIR_ITEM_",
                                          "KVASIR_STEP_",
                                          "KVASIR_PLAN_AT_",
                                          "KVASIR_MASS_AT_",
                                          "KVASIR_SELECTION_",
                                          "KVASIR_OPTION_REQUIRED",
                                          "KVASIR_ATTN_MASS_",
                                          "KVASIR_OPTION_DEPRECATED",
                                          "KVASIR_OPTION_OPTIONAL"};
  std::set<std::string> found;
  for (const auto& family : families())
    for (const auto& constant : family)
      if (starts_with_any(constant.name, masks)) {
        CHECK_MESSAGE(std::has_single_bit(static_cast<uint64_t>(constant.value)), constant.name);
        for (const auto& mask : masks)
          if (constant.name.starts_with(mask)) found.insert(mask);
      }
  CHECK(found.size() == masks.size());
}

TEST_CASE("what one side needs and another provides is the same bit") {
  std::map<std::string, int64_t> needs, provides;
  for (const auto& family : families())
    for (const auto& constant : family) {
      if (constant.name.starts_with("KVASIR_NEED_"))
        needs[constant.name.substr(12)] = constant.value;
      if (constant.name.starts_with("KVASIR_PROVIDE_"))
        provides[constant.name.substr(15)] = constant.value;
    }
  size_t n_shared = 0;
  for (const auto& [name, bit] : provides) {
    if (needs.count(name) != 0) CHECK_MESSAGE(needs[name] == bit, name);
    n_shared += needs.count(name);
    for (const auto& [need, need_bit] : needs)
      if (need != name) CHECK_MESSAGE(need_bit != bit, need, " and ", name);
  }
  CHECK(n_shared >= 6);
}

// The names of a struct's fields, from the text between its braces.
std::vector<std::string> fields_of(const std::string& body) {
  static const std::regex comment(R"(/\*[^]*?\*/)"), function(R"(\(\*(\w+)\)\()"),
      value(R"((\w+)(\[\w+\])?\s*$)");
  std::istringstream code(std::regex_replace(body, comment, " "));
  std::vector<std::string> names;
  for (std::string declaration; std::getline(code, declaration, ';');) {
    std::smatch match;
    if (std::regex_search(declaration, match, function) ||
        std::regex_search(declaration, match, value))
      names.push_back(match[1]);
  }
  return names;
}

TEST_CASE("the layout of every public struct and field is held") {
  const std::filesystem::path root = KVASIR_SOURCE_DIR;
  const std::string checks = read_text(root / "abi" / "kvasir" / "layout_checks.h") +
                             read_text(root / "tests" / "abi" / "ledger.c");
  const auto is_held = [&](const std::string& line) {
    return checks.find(line) != std::string::npos;
  };
  const auto headers = all_headers();
  static const std::regex structure(R"(typedef struct (kvasir_\w+) \{([^]*?)\n\} \1;)");
  size_t n_structs = 0, n_fields = 0;
  for (std::sregex_iterator at(headers.begin(), headers.end(), structure), end; at != end; ++at) {
    const std::string name = (*at)[1];
    CAPTURE(name);
    ++n_structs;
    CHECK((is_held("KVASIR_SIZE_(" + name + ", ") || is_held("\nSIZE(" + name + ", ")));
    for (const std::string& field : fields_of((*at)[2])) {
      CAPTURE(field);
      ++n_fields;
      const std::string place = name + ", " + field + ", ";
      CHECK((is_held("KVASIR_AT_(" + place) || is_held("\nAT(" + place)));
    }
  }
  CHECK(n_structs > 45);  // the patterns still find them
  CHECK(n_fields > 320);
}

TEST_CASE("every header says since when it is there, and no mark is of a minor to come") {
  static const std::regex mark(R"([Ss]ince (\d+)\.(\d+))");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::path(KVASIR_SOURCE_DIR) / "abi" / "kvasir")) {
    if (entry.path().extension() != ".h") continue;
    CAPTURE(entry.path().string());
    const std::string text = read_text(entry.path());
    CHECK(text.substr(0, text.find("SPDX")).find("Since ") != std::string::npos);
    for (std::sregex_iterator at(text.begin(), text.end(), mark), end; at != end; ++at) {
      const auto major = static_cast<uint32_t>(std::stoul((*at)[1]));
      const auto minor = static_cast<uint32_t>(std::stoul((*at)[2]));
      CHECK(major == KVASIR_ABI_MAJOR);
      CHECK(minor >= KVASIR_ABI_MINOR_MIN);
      CHECK(minor <= KVASIR_ABI_MINOR);
    }
  }
}

TEST_CASE("HAS is false for a slot beyond the table, for a null one, and true else") {
  kvasir_selector selector = {};
  selector.base.struct_size = sizeof selector;
  CHECK_FALSE(KVASIR_HAS(&selector.base, kvasir_selector, limits));
  selector.limits = [](void*, kvasir_sel_limits*, kvasir_err*) noexcept -> kvasir_status {
    return KVASIR_OK;
  };
  CHECK(KVASIR_HAS(&selector.base, kvasir_selector, limits));
  selector.base.struct_size = offsetof(kvasir_selector, limits);
  CHECK_FALSE(KVASIR_HAS(&selector.base, kvasir_selector, limits));
  selector.base.struct_size += sizeof(void*) - 1;
  CHECK_FALSE(KVASIR_HAS(&selector.base, kvasir_selector, limits));
}

}  // namespace
