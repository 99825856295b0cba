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

// On stdout. Error(kResource) when it takes no more; what is buffered, main() flushes and checks.
void print_json(const Json& document);  // bytes that are no UTF-8 are replaced
void print_text(const std::string& text);
void print_text_now(const std::string& text);  // flushed

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
