// See json_answer.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/json_answer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

bool has_type(const Json& value, const Json& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  throw input_error("json_object: unknown type " + type.dump() +
                    " (there are string, integer, number, boolean)");
}

}  // namespace

JsonAnswer judge_json(std::string_view prediction, const std::string& wanted) {
  const Json form = Json::parse(wanted, nullptr, false);
  if (!form.is_object() || form.size() != 2 || !form.contains("types") || !form.contains("object"))
    throw input_error(
        "json_object: the reference must be {\"types\": {KEY: type}, \"object\": {KEY: value}}");
  const Json& types = form["types"];
  if (!types.is_object()) throw input_error("json_object: the reference's types are no object");
  const Json given = Json::parse(prediction, nullptr, false);
  JsonAnswer answer;
  if (!given.is_object() || given.size() != types.size()) return answer;
  for (const auto& [key, type] : types.items())
    if (!given.contains(key) || !has_type(given[key], type)) return answer;
  answer.is_valid = true;
  answer.is_right = given == form["object"];
  return answer;
}

}  // namespace kvasir
