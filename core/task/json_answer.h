// Answers that must be a JSON object of a given form, as the argument of a tool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

struct JsonAnswer {
  bool is_valid = false;  // one object with the wanted keys, of the wanted types, and no other
  bool is_right = false;  // valid, and equal to the wanted object
};

// `wanted` is {"types": {KEY: "string" | "integer" | "number" | "boolean"}, "object": {KEY:
// value}}; Error(kInput) when it is not. White space around the object does not count, anything
// else does.
JsonAnswer judge_json(std::string_view prediction, const std::string& wanted);

}  // namespace kvasir
