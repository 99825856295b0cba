// How a command prints its result. The result is a plain struct; to_json(result) and
// to_text(result) are the two ways to print it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace kvasir::tool {

// Result structs hold numbers, strings and lists; this type is for those who print them.
using Json = nlohmann::ordered_json;

void print_json(const Json& document);  // on stdout; bytes that are no UTF-8 are replaced
void print_text(const std::string& text);

// With --json the one JSON document, else the text.
template <class Result>
void print(const Result& result, bool as_json) {
  if (as_json)
    print_json(to_json(result));
  else
    print_text(to_text(result));
}

// null where there is no value.
template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace kvasir::tool
