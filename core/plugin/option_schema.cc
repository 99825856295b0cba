// Checks of a plugin's option schema: sizes, nulls, types, bounds, names.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/option_schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/plugin/alternatives.h"
#include "core/plugin/sizes.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxOptions = 1024;
constexpr size_t kMaxNames = 256;
constexpr size_t kMaxKeyBytes = 64;

bool is_key(const char* text) {
  if (!text) return false;
  const size_t length = strnlen(text, kMaxKeyBytes + 1);
  if (length == 0 || length > kMaxKeyBytes) return false;
  return std::all_of(text, text + length, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::string check_names(const kvasir_option_schema& o) {
  if (!is_key(o.key)) return "its key is missing, longer than 64 bytes or not of [A-Za-z0-9_-]";
  if (KVASIR_HAS(&o, kvasir_option_schema, group) && !is_key(o.group))
    return "its group is not of [A-Za-z0-9_-]";
  if (KVASIR_HAS(&o, kvasir_option_schema, with) && !is_key(o.with))
    return "what it goes with is not of [A-Za-z0-9_-]";
  for (size_t i = 0; o.aliases && o.aliases[i]; ++i) {
    if (i >= kMaxNames) return "it has more than 256 aliases, or their list is not ended by null";
    if (!is_key(o.aliases[i])) return "an alias is not of [A-Za-z0-9_-]";
  }
  if (o.type != KVASIR_OPTION_ENUM) return {};
  if (o.n_enum == 0 || o.n_enum > kMaxNames || !o.enum_names) return "its enum has no names";
  for (uint32_t i = 0; i < o.n_enum; ++i) {
    if (!o.enum_names[i]) return "one of its enum's names is null";
  }
  return {};
}

bool is_integer_type(uint32_t type) {
  return type == KVASIR_OPTION_INT || type == KVASIR_OPTION_BYTES || type == KVASIR_OPTION_INT_LIST;
}

std::string check_bounds(const kvasir_option_schema& o) {
  const bool has_both = o.min.type != 0 && o.max.type != 0;
  if (has_both && is_integer_type(o.type) && o.min.i > o.max.i) return "its min is above its max";
  if (has_both && o.type == KVASIR_OPTION_FLOAT && !(o.min.f <= o.max.f)) {
    return "its min is above its max";
  }
  return {};
}

std::string check_default(const kvasir_option_schema& o) {
  if (o.flags & (KVASIR_OPTION_REQUIRED | KVASIR_OPTION_OPTIONAL)) return {};
  if (o.def.type != 0 && o.def.type != o.type) return "its default is of another type";
  const auto out_of_range = [&](int64_t value) {
    return (o.min.type && value < o.min.i) || (o.max.type && value > o.max.i);
  };
  switch (o.type) {
    case KVASIR_OPTION_BOOL:
      return o.def.i == 0 || o.def.i == 1 ? "" : "its default is neither 0 nor 1";
    case KVASIR_OPTION_ENUM:
      return o.def.i >= 0 && o.def.i < o.n_enum ? "" : "its default is no index of its enum";
    case KVASIR_OPTION_STRING:
    case KVASIR_OPTION_PATH:
      return o.def.s ? "" : "its default is null (mark it OPTIONAL)";
    case KVASIR_OPTION_FLOAT: {
      const bool is_out = (o.min.type && o.def.f < o.min.f) || (o.max.type && o.def.f > o.max.f);
      return std::isnan(o.def.f) || is_out ? "its default is out of its range" : "";
    }
    case KVASIR_OPTION_INT_LIST:
      if (o.def.n != 0 && !o.def.list) return "its default is null (mark it OPTIONAL)";
      return std::any_of(o.def.list, o.def.list + o.def.n, out_of_range)
                 ? "its default is out of its range"
                 : "";
    default:
      return out_of_range(o.def.i) ? "its default is out of its range" : "";
  }
}

std::string check_option(const kvasir_option_schema& o) {
  if (o.type < KVASIR_OPTION_BOOL || o.type > KVASIR_OPTION_INT_LIST) {
    return "its type " + std::to_string(o.type) + " is unknown to this host";
  }
  constexpr uint32_t kBoth = KVASIR_OPTION_REQUIRED | KVASIR_OPTION_OPTIONAL;
  if ((o.flags & kBoth) == kBoth) return "it is REQUIRED and OPTIONAL";
  if (std::string problem = check_names(o); !problem.empty()) return problem;
  if (std::string problem = check_bounds(o); !problem.empty()) return problem;
  return check_default(o);
}

Error defect(const kvasir_desc& desc, const std::string& what) {
  return input_error("plugin " + std::string(desc.id) + " " + desc.version +
                     ": its option schema is wrong (a defect of the plugin): " + what);
}

}  // namespace

std::vector<std::string> alias_names(const kvasir_option_schema& option) {
  std::vector<std::string> names;
  for (size_t i = 0; option.aliases && option.aliases[i]; ++i)
    names.emplace_back(option.aliases[i]);
  return names;
}

Schema checked_schema(const kvasir_desc& desc) {
  Schema schema;
  if (desc.n_options == 0) return schema;
  if (desc.n_options > kMaxOptions || !desc.options) {
    throw defect(desc, std::to_string(desc.n_options) + " options without a table of them");
  }
  if (desc.option_size < abi_least::kOptionSchemaBytes ||
      desc.option_size % alignof(kvasir_option_schema) != 0) {
    throw defect(desc, "option_size is " + std::to_string(desc.option_size) +
                           ", not sizeof(kvasir_option_schema)");
  }
  std::vector<std::string> seen = {"plugin", "path"};
  const auto* bytes = reinterpret_cast<const char*>(desc.options);
  for (uint32_t i = 0; i < desc.n_options; ++i) {
    const auto* option = reinterpret_cast<const kvasir_option_schema*>(
        bytes + static_cast<size_t>(i) * desc.option_size);
    const std::string which = "option " + std::to_string(i);
    if (option->struct_size < abi_least::kOptionSchemaBytes ||
        option->struct_size > desc.option_size) {
      throw defect(desc, which + ": struct_size is " + std::to_string(option->struct_size));
    }
    const std::string wrong = check_option(*option);
    if (!wrong.empty()) {
      throw defect(desc, which +
                             (is_key(option->key) ? " (" + std::string(option->key) + ")" : "") +
                             ": " + wrong);
    }
    std::vector<std::string> names = alias_names(*option);
    names.emplace_back(option->key);
    for (const std::string& name : names) {
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
        throw defect(desc, which + ": the name " + name + " is taken");
      }
      seen.push_back(name);
    }
    schema.push_back(option);
  }
  size_t which = 0;
  const std::string problem = check_alternatives(schema, which);
  if (!problem.empty())
    throw defect(desc,
                 "option " + std::to_string(which) + " (" + schema[which]->key + "): " + problem);
  return schema;
}

}  // namespace kvasir
