// Facts that must be put together, and questions in turn; see graded_scripts.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/task/graded_scripts.h"
#include "core/task/script_parts.h"
#include "core/task/words.h"

namespace kvasir {
namespace {

constexpr std::string_view kGoods[] = {"ropes",   "lamps",  "bells", "mirrors",
                                       "baskets", "spoons", "drums", "ladders"};
constexpr Range kUsualFacts{8, 8};
constexpr uint32_t kMostOwned = 98;

struct Fact {
  std::string person;
  uint32_t number = 0;
  std::string good;
};

// Facts with different people and numbers, of which n_asked are of the first good.
class Facts {
 public:
  Facts(const TaskOptions& options, uint32_t least_asked, TaskRandom& random) : random_(random) {
    const uint32_t n = std::max(draw(random, options.pairs, kUsualFacts), least_asked);
    if (n > words::people().size())
      throw input_error("--pairs " + std::to_string(n) + ": there are facts of " +
                        std::to_string(words::people().size()) + " people");
    std::vector<std::string_view> people(words::people().begin(), words::people().end());
    std::vector<std::string_view> goods(std::begin(kGoods), std::end(kGoods));
    random.shuffle(std::span<std::string_view>(people));
    random.shuffle(std::span<std::string_view>(goods));
    n_asked_ = random.between(least_asked, std::max(least_asked, n - n / 3));
    Unique unique;
    for (uint32_t i = 0; i < n; ++i) {
      const std::string number =
          unique([&] { return std::to_string(random.between(2, 1 + kMostOwned)); });
      const size_t good = i < n_asked_ ? 0 : 1 + random.below(goods.size() - 1);
      facts_.push_back({std::string(people[i]), static_cast<uint32_t>(std::stoul(number)),
                        std::string(goods[good])});
    }
  }

  std::span<const Fact> asked() const { return std::span(facts_).first(n_asked_); }
  const std::string& good() const { return facts_[0].good; }

  // `is_needed`: whether the answer depends on the fact.
  template <class IsNeeded>
  Script script(const IsNeeded& is_needed, Question question) const {
    Script out;
    for (const Fact& fact : facts_)
      out.statements.push_back(statement(" The " + fact.person + " owns ",
                                         std::to_string(fact.number), " " + fact.good + ".",
                                         is_needed(fact) ? 0 : -1));
    random_.shuffle(std::span<Statement>(out.statements));
    out.questions.push_back(std::move(question));
    return out;
  }

 private:
  TaskRandom& random_;
  std::vector<Fact> facts_;
  uint32_t n_asked_ = 0;
};

}  // namespace

Script facts_count(const TaskOptions& options, TaskRandom& random) {
  const Facts facts(options, 2, random);
  const std::string number = std::to_string(facts.asked().size());
  return facts.script([&](const Fact& fact) { return fact.good == facts.good(); },
                      {"\nHow many people own " + facts.good() + "? The number of people who own " +
                           facts.good() + " is",
                       " " + number,
                       {number}});
}

Script facts_most(const TaskOptions& options, TaskRandom& random) {
  const Facts facts(options, 3, random);
  const auto most =
      std::max_element(facts.asked().begin(), facts.asked().end(),
                       [](const Fact& a, const Fact& b) { return a.number < b.number; });
  return facts.script([&](const Fact& fact) { return fact.good == facts.good(); },
                      {"\nWho owns the most " + facts.good() + "? The one who owns the most " +
                           facts.good() + " is the",
                       " " + most->person,
                       {most->person}});
}

Script facts_sum(const TaskOptions& options, TaskRandom& random) {
  const Facts facts(options, 2, random);
  const Fact &first = facts.asked()[0], &second = facts.asked()[1];
  const std::string sum = std::to_string(first.number + second.number);
  return facts.script(
      [&](const Fact& fact) { return fact.person == first.person || fact.person == second.person; },
      {"\nHow many " + facts.good() + " do the " + first.person + " and the " + second.person +
           " own together? Together they own",
       " " + sum,
       {sum}});
}

Script multi_turn(const TaskOptions& options, TaskRandom& random) {
  const uint32_t n = draw(random, options.pairs, {3, 3});
  Unique unique_name, unique_code;
  Script script;
  std::string first;
  for (uint32_t i = 0; i < n; ++i) {
    const std::string name = unique_name([&] { return thing_name(random, ""); });
    const std::string code = unique_code([&] { return digits(random, 7); });
    if (i == 0) first = code;
    script.statements.push_back(
        statement(" The code of the " + name + " is ", code, ".", static_cast<int>(i)));
    script.questions.push_back(
        {"\nWhat is the code of the " + name + "? The code of the " + name + " is",
         " " + code,
         {}});
  }
  random.shuffle(std::span<Statement>(script.statements));
  script.questions.push_back(
      {"\nWhich code was asked for first? The code that was asked for first is", " " + first, {}});
  return script;
}

}  // namespace kvasir
