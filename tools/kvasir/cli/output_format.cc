// See output_format.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/output_format.h"

#include <CLI/CLI.hpp>

#include <map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace kvasir::tool {
namespace {

using Fields = std::vector<std::pair<std::string, Json>>;

void flatten(const Json& object, const std::string& before, Fields& out) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      flatten(value, before + name + "_", out);
    else if (!value.is_array())
      out.emplace_back(before + name, value);
  }
}

// Numbers as JSON has them; text in quotes (RFC 4180); nothing for null.
std::string cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string out = "\"";
  for (const char c : value.get<std::string>()) out.append(c == '"' ? 2 : 1, c);
  return out + "\"";
}

}  // namespace

void add_output_format(CLI::App& app, OutputFormat& format) {
  static const std::map<std::string, OutputFormat> kFormats = {
      {"md", OutputFormat::kMarkdown}, {"json", OutputFormat::kJson}, {"csv", OutputFormat::kCsv}};
  auto* output =
      app.add_option_function<std::string>(
             "-o,--output", [&format](const std::string& name) { format = kFormats.at(name); },
             "md (default), json or csv, on stdout and nothing else there")
          ->check(CLI::IsMember({"md", "json", "csv"}));
  app.add_flag_callback(
         "--json", [&format] { format = OutputFormat::kJson; }, "-o json")
      ->excludes(output);
}

std::string to_csv(const Json& document) {
  std::string out, names;
  Fields common;
  flatten(document, "", common);
  for (const Json& row : document.at("rows")) {
    Fields fields = common;
    flatten(row, "", fields);
    std::string header, line;
    for (const auto& [name, value] : fields) {
      header += (header.empty() ? "" : ",") + name;
      line += (line.empty() && &value == &fields[0].second ? "" : ",") + cell(value);
    }
    if (names.empty()) out = header + "\n";
    if (!names.empty() && names != header)
      throw Error(ErrorKind::kInternal, "rows of one table have different columns");
    names = header;
    out += line + "\n";
  }
  return out;
}

}  // namespace kvasir::tool
