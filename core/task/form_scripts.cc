// Answers of a given form, and the needle in Chinese; see graded_scripts.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "core/task/graded_scripts.h"
#include "core/task/script_parts.h"
#include "core/task/words.h"

namespace kvasir {
namespace {

// Of random bits, in the form of version 4 (RFC 9562).
std::string uuid(TaskRandom& random) {
  constexpr std::string_view kForm = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx";
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text(kForm);
  for (char& c : text)
    if (c == 'x' || c == 'y') c = kHex[c == 'x' ? random.below(16) : 8 + random.below(4)];
  return text;
}

// In the middle of an object.
std::string pair_of(const std::string& key, const std::string& value) {
  return " \"" + key + "\": \"" + value + "\",";
}

// A key of a tool, with its type and the value it is called with.
struct Argument {
  std::string key, type, said, value;  // said: in the question; value: as JSON
};

Argument argument(const std::string& type, const std::string& key, TaskRandom& random) {
  if (type == "integer") {
    const std::string number = std::to_string(random.between(2, 99));
    return {key, type, number, number};
  }
  if (type == "boolean") {
    const std::string word = random.chance(2) ? "true" : "false";
    return {key, type, word, word};
  }
  const std::string name = thing_name(random, "");
  return {key, type, name, "\"" + name + "\""};
}

std::string joined(const std::vector<Argument>& arguments, std::string Argument::*part) {
  std::string out;
  for (const Argument& a : arguments)
    out += (out.empty() ? "\"" : ", \"") + a.key + "\": " + a.*part;
  return "{" + out + "}";
}

}  // namespace

Script uuid_retrieval(const TaskOptions& options, size_t budget, TaskRandom& random,
                      PieceEncoder& encoder) {
  const std::string intro = " JSON data:\n{";
  const auto question_of = [](const std::string& key) {
    return "\nKey: \"" + key + "\"\nThe value associated with the specified key is:";
  };
  const std::string some = uuid(random);
  // UUIDs differ in tokens: what a longer question takes is spared.
  const size_t around = encoder.count(intro) + encoder.count(question_of(some)) +
                        encoder.count(" \"" + some + "\"") + some.size();
  std::vector<std::pair<std::string, std::string>> pairs;
  size_t used = around;
  const size_t n = options.pairs.given() ? draw(random, options.pairs, {}) : SIZE_MAX;
  while (pairs.size() < n) {
    const std::string key = uuid(random), value = uuid(random);
    used += encoder.count(pair_of(key, value));
    if (!options.pairs.given() && pairs.size() >= 2 && used > budget) break;
    pairs.emplace_back(key, value);
  }
  const size_t asked = random.below(pairs.size());
  Script script;
  script.filler = Filler::kNone;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [key, value] = pairs[i];
    script.statements.push_back(statement((i == 0 ? intro : " ") + "\"" + key + "\": \"", value,
                                          i + 1 == pairs.size() ? "\"}" : "\",",
                                          i == asked ? 0 : -1));
  }
  script.questions.push_back(
      {question_of(pairs[asked].first), " \"" + pairs[asked].second + "\"", {pairs[asked].second}});
  return script;
}

Script tool_call(const TaskOptions& options, TaskRandom& random) {
  const uint32_t n_tools = draw(random, options.pairs, {3, 3});
  Unique unique_key, unique_tool;
  const auto underscored = [&] {
    std::string name = thing_name(random, "");
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
  };
  Script script;
  for (uint32_t tool = 0; tool < n_tools; ++tool) {
    std::vector<std::string> types = {"string", "integer", "boolean"};
    random.shuffle(std::span<std::string>(types));
    std::vector<Argument> arguments;
    for (const std::string& type : types)
      arguments.push_back(argument(type, unique_key(underscored), random));
    const std::string name =
        unique_tool([&] { return "use_" + std::string(random.pick(words::things())); });
    const bool asked = tool == 0;
    script.statements.push_back(statement("\nThe tool " + name + " takes one JSON object: ",
                                          joined(arguments, &Argument::type), "", asked ? 0 : -1));
    script.depths.push_back(0);
    if (!asked) continue;
    std::string types_text;
    for (const Argument& a : arguments)
      types_text += (types_text.empty() ? "\"" : ", \"") + a.key + "\": \"" + a.type + "\"";
    const std::string object = joined(arguments, &Argument::value);
    script.questions.push_back({"\nCall the tool " + name + " with " + arguments[0].said + ", " +
                                    arguments[1].said + " and " + arguments[2].said +
                                    ". The JSON object is:",
                                " " + object,
                                {"{\"types\": {" + types_text + "}, \"object\": " + object + "}"}});
  }
  random.shuffle(std::span<Statement>(script.statements));
  return script;
}

Script needle_zh(TaskRandom& random) {
  constexpr std::string_view kQualities[] = {"安静", "古老", "明亮", "遥远",
                                             "宽阔", "寒冷", "高大", "神秘"};
  constexpr std::string_view kPlaces[] = {"港口", "花园", "图书馆", "车站", "磨坊", "塔楼",
                                          "山谷", "码头", "博物馆", "广场", "岛屿", "果园"};
  const std::string name = std::string(random.pick(std::span<const std::string_view>(kQualities))) +
                           "的" +
                           std::string(random.pick(std::span<const std::string_view>(kPlaces)));
  const std::string code = digits(random, 7);
  Script script;
  script.filler = Filler::kChinese;
  script.statements.push_back(statement("\n" + name + "的密码是", code, "。", 0));
  script.questions.push_back({"\n" + name + "的密码是什么？" + name + "的密码是", code, {}});
  return script;
}

}  // namespace kvasir
