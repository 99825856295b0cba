// Tasks with scored answers: each is solved here from its text alone, by other means than those
// that made it.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "core/task/json_answer.h"
#include "core/task/task.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

using Strings = std::vector<std::string>;

std::vector<Sample> samples(Task task, uint32_t length, uint32_t n,
                            const TaskOptions& options = {}) {
  static const auto tokenizer = test::small_vocabulary();
  static PieceEncoder encoder(*tokenizer);
  TaskGenerator generator(task, options, length, encoder);
  std::vector<Sample> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(generator.make(11, i));
  for (const Sample& sample : out) {
    CHECK(sample.tokens.ids.size() <= length);
    CHECK(sample.label == name(task));
    for (const Turn& turn : sample.turns) {
      const Span tokens = sample.token_span(turn.answer);
      CHECK(sample.grading.max_new_tokens >= tokens.end - tokens.begin);
      // The expected answer earns everything.
      CHECK(score(sample.grading.scorer, sample.bytes(turn.answer), turn.references) == 1);
    }
  }
  return out;
}

std::string context(const Sample& s) { return s.text.substr(0, s.turns[0].question.begin); }
std::string question(const Sample& s, size_t turn = 0) { return s.bytes(s.turns[turn].question); }
std::string behind(const std::string& text, const std::string& mark) {
  const size_t at = text.rfind(mark);
  REQUIRE(at != text.npos);
  return text.substr(at + mark.size());
}

std::vector<std::smatch> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), expression), std::sregex_iterator()};
}

TEST_SUITE_BEGIN("core/task/graded_tasks");

TEST_CASE("common words: those asked for stand most often, and the places are counted") {
  for (const uint32_t length : {3000u, 12000u, 20000u}) {
    for (const Sample& sample : samples(Task::kCommonWords, length, 4)) {
      const std::string list = behind(context(sample), "appear most often.\n");
      std::map<std::string, size_t> times;
      std::istringstream stream(list);
      std::string place, word;
      for (size_t n = 1; stream >> place >> word; ++n) {
        REQUIRE(place == std::to_string(n) + ".");
        ++times[word];
      }
      std::set<std::string> often;
      const size_t most = length < 4096 ? 6 : 30;
      for (const auto& [w, n] : times) {
        CHECK((n == most || n == most / 10 + (most < 10)));
        if (n == most) often.insert(w);
      }
      const Strings& wanted = sample.turns[0].references;
      CHECK(often == std::set<std::string>(wanted.begin(), wanted.end()));
      CHECK(often.size() == 10);
      CHECK(times.size() > 10);
      // The example before it holds none of its common words in its answer.
      const std::string example = context(sample).substr(0, context(sample).size() - list.size());
      CHECK(example.find("the list are: 1. ") != example.npos);
    }
  }
}

TEST_CASE("frequent words: the counts are those of a zeta distribution, the answer ranks 2 to 4") {
  const double zeta2 = std::pow(std::acos(-1.0), 2) / 6;
  for (const uint32_t length : {700u, 3000u, 9000u}) {
    for (const Sample& sample : samples(Task::kFrequentWords, length, 4)) {
      std::istringstream stream(behind(context(sample), "coded words. "));
      std::map<std::string, size_t> times;
      for (std::string word; stream >> word;) ++times[word];
      std::vector<std::pair<size_t, std::string>> ranks;
      for (const auto& [word, n] : times) ranks.emplace_back(n, word);
      std::sort(ranks.rbegin(), ranks.rend());
      REQUIRE(ranks.size() >= 4);
      CHECK(ranks[0].second == "...");
      CHECK(ranks[3].first > (ranks.size() > 4 ? ranks[4].first : 0));
      CHECK(sample.turns[0].references ==
            Strings{ranks[1].second, ranks[2].second, ranks[3].second});
      // One number of draws explains all counts: n / (k^2 zeta(2)), rounded down.
      double least = 0, most = 1e18;
      for (size_t k = 1; k <= ranks.size(); ++k) {
        const double scale = static_cast<double>(k * k) * zeta2;
        least = std::max(least, static_cast<double>(ranks[k - 1].first) * scale);
        most = std::min(most, static_cast<double>(ranks[k - 1].first + 1) * scale);
      }
      CHECK(least < most);
    }
  }
}

struct OwnedFact {
  int number;
  std::string good;
};
std::map<std::string, OwnedFact> facts_of(const Sample& sample) {
  const std::string text = context(sample);
  std::map<std::string, OwnedFact> out;
  for (const auto& m : matches(text, "The (\\w+) owns (\\d+) (\\w+)\\."))
    CHECK(out.emplace(m[1].str(), OwnedFact{std::stoi(m[2].str()), m[3].str()}).second);
  return out;
}

TEST_CASE("facts: counts, maxima and sums are those of the facts in the text") {
  std::set<std::string> counts;
  for (const Sample& sample : samples(Task::kFactsCount, 900, 40)) {
    const std::string q = question(sample);
    const std::string good = matches(q, "own (\\w+)\\?").at(0)[1].str();
    int n = 0;
    for (const auto& [person, fact] : facts_of(sample)) n += fact.good == good;
    CHECK(sample.turns[0].references == Strings{std::to_string(n)});
    counts.insert(std::to_string(n));
  }
  CHECK(counts.size() >= 4);  // no number is right by habit
  for (const Sample& sample : samples(Task::kFactsMost, 900, 40)) {
    const std::string q = question(sample);
    const std::string good = matches(q, "owns the most (\\w+)\\?").at(0)[1].str();
    std::vector<std::pair<int, std::string>> owners;
    for (const auto& [person, fact] : facts_of(sample))
      if (fact.good == good) owners.emplace_back(fact.number, person);
    CHECK(owners.size() >= 3);
    CHECK(sample.turns[0].references ==
          Strings{std::max_element(owners.begin(), owners.end())->second});
  }
  for (const Sample& sample : samples(Task::kFactsSum, 900, 40)) {
    const std::string q = question(sample);
    const auto m = matches(q, "How many (\\w+) do the (\\w+) and the (\\w+) own").at(0);
    const auto facts = facts_of(sample);
    CHECK(facts.at(m[2].str()).good == m[1].str());
    CHECK(facts.at(m[3].str()).good == m[1].str());
    CHECK(sample.turns[0].references ==
          Strings{std::to_string(facts.at(m[2].str()).number + facts.at(m[3].str()).number)});
  }
}

TEST_CASE("multi turn: every code is asked for once, then the first one again") {
  for (const Sample& sample : samples(Task::kMultiTurn, 600, 20)) {
    std::map<std::string, std::string> code;
    const std::string text = context(sample);
    for (const auto& m : matches(text, "The code of the (\\w+ \\w+) is (\\d{7})\\."))
      code[m[1].str()] = m[2].str();
    REQUIRE(sample.turns.size() == code.size() + 1);
    std::string first;
    for (size_t turn = 0; turn + 1 < sample.turns.size(); ++turn) {
      const std::string q = question(sample, turn);
      const std::string name = matches(q, "code of the (\\w+ \\w+)\\?").at(0)[1].str();
      CHECK(sample.turns[turn].references == Strings{code.at(name)});
      if (turn == 0) first = code.at(name);
      code.erase(name);
    }
    CHECK(code.empty());
    CHECK(sample.turns.back().references == Strings{first});
  }
}

TEST_CASE("uuid retrieval: the context is one JSON object that holds the answer under the key") {
  for (const Sample& sample : samples(Task::kUuidRetrieval, 3000, 10)) {
    const auto json = nlohmann::json::parse(behind(context(sample), "JSON data:\n"));
    const std::string q = question(sample);
    const std::string key = matches(q, "Key: \"([-0-9a-f]+)\"").at(0)[1].str();
    CHECK(sample.turns[0].references == Strings{json.at(key).get<std::string>()});
    CHECK(json.size() > 5);
    for (const auto& [k, value] : json.items())
      for (const std::string& uuid : {k, value.get<std::string>()})
        CHECK(std::regex_match(
            uuid,
            std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")));
  }
}

TEST_CASE("tool calls: keys and types stand at the start, values in the question") {
  for (const Sample& sample : samples(Task::kToolCall, 900, 20)) {
    std::map<std::string, std::string> forms;
    const std::string text = context(sample), q = question(sample);
    for (const auto& m : matches(text, "The tool (\\w+) takes one JSON object: (\\{[^}]*\\})"))
      forms[m[1].str()] = m[2].str();
    CHECK(forms.size() == 3);
    CHECK(text.rfind("The tool ") < text.size() / 2);
    const auto asked = matches(q, "Call the tool (\\w+) with (.+), (.+) and (.+)\\. The").at(0);
    const std::string form = forms.at(asked[1].str());
    nlohmann::json object, types;
    size_t place = 2;
    for (const auto& m : matches(form, "\"(\\w+)\": (string|integer|boolean)")) {
      const std::string said = asked[place++].str();
      types[m[1].str()] = m[2].str();
      if (m[2].str() == "string") object[m[1].str()] = said;
      if (m[2].str() == "integer") object[m[1].str()] = std::stoi(said);
      if (m[2].str() == "boolean") object[m[1].str()] = said == "true";
      CHECK(q.find(m[1].str()) == q.npos);  // keys must be remembered
    }
    CHECK(nlohmann::json::parse(sample.turns[0].references[0]) ==
          nlohmann::json{{"types", types}, {"object", object}});
    CHECK(nlohmann::json::parse(sample.bytes(sample.turns[0].answer)) == object);
  }
}

TEST_CASE("the Chinese needle stands in Chinese text, once") {
  for (const Sample& sample : samples(Task::kNeedleZh, 900, 20)) {
    const std::string q = question(sample), text = context(sample);
    const std::string name = q.substr(1, q.find("的密码是什么") - 1);
    const auto found = matches(text, name + "的密码是(\\d{7})。");
    REQUIRE(found.size() == 1);
    CHECK(sample.turns[0].references == Strings{found[0][1].str()});
    CHECK(std::none_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; }));
  }
}

TEST_CASE("depths place the needle, sample after sample, for any one statement") {
  TaskOptions options;
  options.depths = {0, 0.25, 0.5, 0.75, 1};
  for (const Task task : {Task::kPasskey, Task::kNeedle, Task::kNeedleMultiKey, Task::kNeedleZh}) {
    CAPTURE(std::string(name(task)));
    const auto made = samples(task, 3000, 10, options);
    for (size_t i = 0; i < made.size(); ++i) {
      const auto asked = std::find_if(made[i].planted.begin(), made[i].planted.end(),
                                      [](const Planted& p) { return p.turn == 0; });
      CHECK(asked->depth == doctest::Approx(options.depths[i % 5]).epsilon(0.04));
    }
  }
  for (const Task task : {Task::kFactsSum, Task::kUuidRetrieval, Task::kToolCall})
    CHECK(test::error_of([&] { samples(task, 3000, 1, options); }).find("--depths: ") == 0);
}

TEST_CASE("a JSON answer is valid by keys and types, and right by values") {
  const std::string wanted =
      R"({"types": {"name": "string", "n": "integer", "on": "boolean"},
          "object": {"name": "red hall", "n": 4, "on": true}})";
  const auto judged = [&](const char* text) {
    const JsonAnswer answer = judge_json(text, wanted);
    return std::pair(answer.is_valid, answer.is_right);
  };
  CHECK(judged(R"( {"name": "red hall", "n": 4, "on": true})") == std::pair(true, true));
  CHECK(judged(R"({"on": true, "n": 4, "name": "red hall"})") == std::pair(true, true));
  CHECK(judged(R"({"name": "red wall", "n": 4, "on": true})") == std::pair(true, false));
  CHECK(judged(R"({"name": "red hall", "n": 4.0, "on": true})") == std::pair(false, false));
  CHECK(judged(R"({"name": "red hall", "n": "4", "on": true})") == std::pair(false, false));
  CHECK(judged(R"({"name": "red hall", "n": 4})") == std::pair(false, false));
  CHECK(judged(R"({"name": "red hall", "n": 4, "on": true, "x": 1})") == std::pair(false, false));
  CHECK(judged(R"({"name": "red hall", "n": 4, "on": true} and)") == std::pair(false, false));
  CHECK(judged("") == std::pair(false, false));
  CHECK(test::error_of([] { judge_json("{}", "{}"); }).find("the reference must be") !=
        std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
