// See fields.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/formats/fields.h"

#include <algorithm>
#include <limits>

#include "core/config/strategy.h"
#include "core/error.h"

namespace kvasir {
namespace {

bool is_label(const FormatJson& value) { return value.is_string() || value.is_number(); }
std::string label_of(const FormatJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

Fields::Fields(const FormatJson& object, std::string place)
    : object_(object), place_(std::move(place)) {
  if (!object.is_object()) throw input_error(place_ + ": expected a JSON object with a sample");
}

void Fields::fail(const std::string& field, const std::string& problem) const {
  throw input_error(place_ + ": field `" + field + "`: " + problem);
}

bool Fields::has(const std::string& field) const { return object_.contains(field); }

const FormatJson& Fields::at(const std::string& field) {
  known_.insert(field);
  const auto it = object_.find(field);
  if (it == object_.end()) fail(field, "missing");
  return *it;
}

std::string Fields::text(const std::string& field) {
  const FormatJson& value = at(field);
  if (!value.is_string()) fail(field, "expected a text");
  return value.get<std::string>();
}

std::string Fields::label(const std::string& field) {
  const FormatJson& value = at(field);
  if (!is_label(value)) fail(field, "expected a text or a number");
  return label_of(value);
}

std::vector<std::string> Fields::texts(const std::string& field) {
  const FormatJson& value = at(field);
  std::vector<std::string> out;
  if (is_label(value)) {
    out.push_back(label_of(value));
  } else if (value.is_array()) {
    for (const FormatJson& part : value) {
      if (!is_label(part)) fail(field, "expected a list of texts or numbers");
      out.push_back(label_of(part));
    }
  }
  if (out.empty()) fail(field, "expected a text, or a list with at least one");
  return out;
}

uint32_t Fields::count(const std::string& field) {
  const FormatJson& value = at(field);
  if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<uint32_t>::max())
    fail(field, "expected a whole number from 0 to 4294967295");
  return value.get<uint32_t>();
}

bool Fields::flag(const std::string& field) {
  const FormatJson& value = at(field);
  if (!value.is_boolean()) fail(field, "expected true or false");
  return value.get<bool>();
}

const FormatJson& Fields::list(const std::string& field) {
  const FormatJson& value = at(field);
  if (!value.is_array()) fail(field, "expected a list");
  return value;
}

Span Fields::span(const std::string& field) {
  const FormatJson& value = at(field);
  const bool is_pair = value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
                       value[1].is_number_unsigned() && value[0] <= value[1];
  if (!is_pair) fail(field, "expected [begin, end], bytes of the prompt");
  return {value[0].get<size_t>(), value[1].get<size_t>()};
}

void Fields::ignore(std::initializer_list<const char*> fields) {
  for (const char* field : fields) known_.insert(field);
}

void Fields::finish() const {
  for (const auto& [field, value] : object_.items()) {
    if (known_.count(field)) continue;
    const std::string near = nearest_name(field, {known_.begin(), known_.end()});
    std::string all;
    for (const std::string& known : known_) all += (all.empty() ? "" : ", ") + known;
    fail(field, "unknown" + (near.empty() ? "" : ", did you mean `" + near + "`?") +
                    "; remove it, or give another --format (this one knows " + all + ")");
  }
}

FormatJson id_json(const SampleText& sample) {
  const FormatJson id = FormatJson::parse(sample.id, nullptr, false);
  return id.is_number_integer() ? id : FormatJson(sample.id);
}

void split_question(const std::string& prompt, std::string& context, std::string& question) {
  size_t end = prompt.size();
  while (end > 0 && prompt[end - 1] == '\n') --end;
  const size_t line = end == 0 ? prompt.npos : prompt.rfind('\n', end - 1);
  const size_t begin = line == prompt.npos ? 0 : line;
  context = prompt.substr(0, begin);
  question = prompt.substr(begin);
}

std::optional<Scorer> usual_scorer(const std::string& task) {
  for (const TaskInfo& entry : task_list())
    if (task == entry.name) return entry.scorer;
  return std::nullopt;
}

}  // namespace kvasir
