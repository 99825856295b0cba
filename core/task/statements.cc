// The tasks' statements and questions; see task.h for their forms.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/statements.h"

#include <algorithm>

#include "core/task/graded_scripts.h"
#include "core/task/script_parts.h"
#include "core/task/words.h"

namespace kvasir {
namespace {

class Writer {
 public:
  Writer(const TaskOptions& options, size_t budget, TaskRandom& random, PieceEncoder& encoder)
      : options_(options), budget_(budget), random_(random), encoder_(encoder) {}

  Script passkey() {
    return sentence("The pass key is ", digits(random_, 5),
                    "What is the pass key? The pass key is");
  }

  Script number_string() {
    std::string number = digits(random_, 5);
    while (number.size() < 10) {
      const size_t at = random_.below(number.size());
      number.insert(at, 1, number[at]);
    }
    return sentence("The sequence of digits is ", number,
                    "What is the sequence of digits? The sequence of digits is");
  }

  // n_keys needles, of which n_asked are asked for.
  Script needles(uint32_t n_keys, uint32_t n_asked) {
    Unique unique_name, unique_code;
    std::vector<std::string> names{unique_name([&] { return thing_name(random_, ""); })};
    while (names.size() < n_keys)
      names.push_back(
          unique_name([&] { return thing_name(random_, random_.chance(2) ? names[0] : ""); }));
    Script script;
    std::vector<size_t> order = shuffled(n_keys);
    for (size_t i = 0; i < n_keys; ++i) {
      const size_t which = order[i];
      const std::string code = unique_code([&] { return digits(random_, kCodeDigits); });
      const bool asked = which < n_asked;
      script.statements.push_back(statement(" The code of the " + names[which] + " is ", code, ".",
                                            asked ? static_cast<int>(which) : -1));
    }
    script.questions.resize(n_asked);
    for (const Statement& s : script.statements) {
      if (s.turn < 0) continue;
      const std::string& name = names[static_cast<size_t>(s.turn)];
      script.questions[static_cast<size_t>(s.turn)] = {
          "\nWhat is the code of the " + name + "? The code of the " + name + " is",
          std::string(" ").append(value_of(s))};
    }
    return script;
  }

  Script multi_value() {
    const uint32_t n = draw(random_, options_.pairs, {4, 4});
    const std::string name = thing_name(random_, "");
    Unique unique;
    Script script;
    std::string answer;
    std::vector<std::string> codes;
    for (uint32_t i = 0; i < n; ++i) {
      const std::string code = unique([&] { return digits(random_, kCodeDigits); });
      codes.push_back(code);
      script.statements.push_back(statement(" A code of the " + name + " is ", code, ".", 0));
      answer += (answer.empty() ? " " : ", ") + code;
    }
    script.questions.push_back(
        {"\nWhich codes has the " + name + "? The codes of the " + name + " are", answer, codes});
    return script;
  }

  Script kv_retrieval() {
    const Range four_to_eight{4, 8};
    const auto value = [&] { return number(draw(random_, options_.value_tokens, four_to_eight)); };
    Unique unique;
    std::vector<std::string> keys;
    const auto key = [&] {
      return keys.emplace_back(unique([&] {
        return word_key(draw(random_, options_.key_tokens, four_to_eight),
                        keys.empty() || random_.chance(2) ? "" : keys[random_.below(keys.size())]);
      }));
    };
    Script script;
    const auto add = [&] {
      const std::string made = key();
      script.statements.push_back(statement("\nkey" + made + "=", value(), "", -1));
    };
    if (options_.pairs.given()) {
      const uint32_t n = draw(random_, options_.pairs, {});
      while (script.statements.size() < n) add();
    } else {
      fill_with(add, script);
      keys.resize(script.statements.size());
    }
    ask(script, keys, draw(random_, options_.queries, {1, 1}), "\nget", "=");
    return script;
  }

  Script mqar() {
    Unique unique;
    const uint32_t n = draw(random_, options_.pairs, {8, 8});
    std::vector<std::string> keys;
    Script script;
    for (uint32_t i = 0; i < n; ++i) {
      keys.push_back(unique([&] {
        return word_key(draw(random_, options_.key_tokens, {1, 1}), "");
      }));
      const std::string value = word_key(draw(random_, options_.value_tokens, {1, 1}), "");
      script.statements.push_back(statement("\npair" + keys.back() + ":", value, "", -1));
    }
    ask(script, keys, draw(random_, options_.queries, {n, n}), "\nrecall", ":");
    return script;
  }

  // Chains of names, each set to the one before; the first chain's last name is asked for. The
  // order within a chain is kept, the chains are interleaved.
  Script variable_tracking() {
    const uint32_t hops = draw(random_, options_.hops, {2, 2});
    Unique unique_name, unique_value;
    std::vector<std::vector<std::string>> chains(std::max(options_.chains, 1u));
    std::vector<size_t> turns_of;  // which chain comes next
    for (size_t c = 0; c < chains.size(); ++c) {
      for (uint32_t i = 0; i <= hops; ++i) {
        chains[c].push_back(unique_name([&] { return std::string(random_.pick(words::keys())); }));
        turns_of.push_back(c);
      }
    }
    random_.shuffle(std::span<size_t>(turns_of));
    Script script;
    std::vector<size_t> done(chains.size(), 0);
    std::string asked_value;
    for (const size_t c : turns_of) {
      const size_t step = done[c]++;
      const std::string value =
          step ? chains[c][step - 1] : unique_value([&] { return digits(random_, 5); });
      if (c == 0 && step == 0) asked_value = value;
      script.statements.push_back(
          statement(" Set " + chains[c][step] + " to ", value, ".", c == 0 ? 0 : -1));
    }
    const std::string& last = chains[0].back();
    script.questions.push_back(
        {"\nWhat is the value of " + last + "? The value of " + last + " is", " " + asked_value});
    return script;
  }

  // Who has which key, and what each opens with, in chunks of their own.
  Script chunk_chain() {
    const uint32_t n_chains = std::max(options_.chains, 1u), n = options_.chunks;
    if (2 * n_chains > n)
      throw input_error("--n-chunks " + std::to_string(n) + ": chunk_chain puts " +
                        std::to_string(2 * n_chains) +
                        " statements in chunks of their own: give as many or lower --chains");
    Unique unique_person, unique_key, unique_code;
    std::vector<Statement> facts;
    Script script;
    for (uint32_t c = 0; c < n_chains; ++c) {
      const auto person = unique_person([&] { return std::string(random_.pick(words::people())); });
      const auto key = unique_key([&] { return std::string(random_.pick(words::adjectives())); });
      const auto code = unique_code([&] { return digits(random_, 5); });
      const int turn = c == 0 ? 0 : -1;
      facts.push_back(statement(" The " + person + " has the ", key, " key.", turn));
      facts.push_back(statement(" The " + key + " key opens with ", code, ".", turn));
      if (c == 0)
        script.questions.push_back({"\nWith what does the key of the " + person +
                                        " open? The key of the " + person + " opens with",
                                    std::string(" ").append(code)});
    }
    random_.shuffle(std::span<Statement>(facts));
    std::vector<size_t> chunks = shuffled(n);
    chunks.resize(facts.size());
    std::sort(chunks.begin(), chunks.end());
    for (const size_t chunk : chunks)
      script.depths.push_back((static_cast<double>(chunk) + 0.5) / n);
    script.statements = std::move(facts);
    script.n_chunks = n;
    return script;
  }

  // A needle across each border; one is asked for.
  Script chunk_border() {
    const uint32_t n = options_.chunks;
    if (n < 2) throw input_error("--n-chunks " + std::to_string(n) + ": a border needs two chunks");
    Script script = needles(n - 1, 1);
    for (uint32_t border = 1; border < n; ++border)
      script.depths.push_back(static_cast<double>(border) / n);
    script.n_chunks = n;
    script.splits_statements = true;
    return script;
  }

  // Half of the text is the words, the other half the same again.
  Script repeat() {
    Script script;
    std::string words;
    size_t used = 0;
    const std::string question = "\nAgain:";
    const size_t around = encoder_.count("\nOnce:") + encoder_.count(question) + 1;
    while (true) {
      const std::string word = random_.chance(4)
                                   ? std::string(" ").append(digits(random_, random_.between(1, 4)))
                                   : std::string(" ").append(random_.pick(words::keys()));
      used += encoder_.count(word);
      if (!words.empty() && around + 2 * used > budget_) break;
      words += word;
    }
    script.statements.push_back(statement("\nOnce:", words, "", 0));
    script.questions.push_back({question, words});
    return script;
  }

 private:
  static constexpr size_t kCodeDigits = 7;

  static std::string value_of(const Statement& s) {
    return s.text.substr(s.value.begin, s.value.end - s.value.begin);
  }

  static Script sentence(const std::string& before, const std::string& value,
                         const std::string& question) {
    Script script;
    script.statements.push_back(statement(" " + before, value, ". Remember it.", 0));
    script.questions.push_back({"\n" + question, " " + value});
    return script;
  }

  // " amber river stone" of at least `tokens` tokens; begins with some of the words of `like`.
  std::string word_key(uint32_t tokens, const std::string& like) {
    std::string key;
    size_t n = 0;
    if (!like.empty() && tokens > 1) {
      const uint64_t shared = random_.between(1, tokens - 1);
      for (size_t end = like.find(' ', 1); end != like.npos; end = like.find(' ', end + 1)) {
        const size_t n_shared = encoder_.count(std::string_view(like).substr(0, end));
        if (n_shared > shared) break;
        key = like.substr(0, end);
        n = n_shared;
      }
    }
    while (n < tokens) {
      std::string word(" ");
      word += random_.pick(words::keys());
      n += encoder_.count(word);
      key += word;
    }
    return key;
  }

  // Adds statements, two at least, while they and their questions fit. A question is as long as the
  // statement it asks for.
  template <class Add>
  void fill_with(const Add& add, Script& script) {
    const size_t n_asked = options_.queries.given() ? options_.queries.last : 1;
    size_t used = 0, largest = 0;
    for (;;) {
      add();
      const size_t tokens = encoder_.count(script.statements.back().text);
      used += tokens;
      largest = std::max(largest, tokens);
      const size_t n = script.statements.size();
      if (n > 2 && used + std::min(n_asked, n) * largest > budget_) break;
    }
    script.statements.pop_back();
  }

  // Digits of at least `tokens` tokens.
  std::string number(uint32_t tokens) {
    std::string text = digits(random_, tokens);
    while (encoder_.count(text) < tokens) text += digits(random_, 1);
    return text;
  }

  std::vector<size_t> shuffled(size_t n) {
    std::vector<size_t> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = i;
    random_.shuffle(std::span<size_t>(order));
    return order;
  }

  void ask(Script& script, const std::vector<std::string>& keys, size_t n, const char* verb,
           const char* sign) {
    const std::vector<size_t> order = shuffled(keys.size());
    for (size_t turn = 0; turn < std::min(n, order.size()); ++turn) {
      Statement& s = script.statements[order[turn]];
      s.turn = static_cast<int>(turn);
      script.questions.push_back({verb + keys[order[turn]] + sign, value_of(s)});
    }
  }

  const TaskOptions& options_;
  size_t budget_;
  TaskRandom& random_;
  PieceEncoder& encoder_;
};

}  // namespace

std::string thing_name(TaskRandom& random, const std::string& like) {
  const bool place = random.chance(2);
  std::string quality(random.pick(words::adjectives()));
  std::string noun(random.pick(place ? words::places() : words::things()));
  if (!like.empty()) {
    const size_t space = like.find(' ');
    if (random.chance(2)) {
      quality = like.substr(0, space);
    } else {
      noun = like.substr(space + 1);
    }
  }
  return quality + " " + noun;
}

Script write_script(Task task, const TaskOptions& options, size_t budget, TaskRandom& random,
                    PieceEncoder& encoder) {
  Writer writer(options, budget, random, encoder);
  switch (task) {
    case Task::kPasskey:
      return writer.passkey();
    case Task::kNumberString:
      return writer.number_string();
    case Task::kNeedle:
      return writer.needles(1, 1);
    case Task::kNeedleMultiKey:
      return writer.needles(draw(random, options.pairs, {4, 4}), 1);
    case Task::kNeedleMultiValue:
      return writer.multi_value();
    case Task::kNeedleMultiQuery: {
      const uint32_t n = draw(random, options.pairs, {4, 4});
      return writer.needles(n, std::min(n, draw(random, options.queries, {n, n})));
    }
    case Task::kKvRetrieval:
      return writer.kv_retrieval();
    case Task::kMqar:
      return writer.mqar();
    case Task::kVariableTracking:
      return writer.variable_tracking();
    case Task::kRepeat:
      return writer.repeat();
    case Task::kChunkChain:
      return writer.chunk_chain();
    case Task::kChunkBorder:
      return writer.chunk_border();
    case Task::kCommonWords:
      return common_words(options, budget, random, encoder);
    case Task::kFrequentWords:
      return frequent_words(options, budget, random, encoder);
    case Task::kFactsCount:
      return facts_count(options, random);
    case Task::kFactsMost:
      return facts_most(options, random);
    case Task::kFactsSum:
      return facts_sum(options, random);
    case Task::kMultiTurn:
      return multi_turn(options, random);
    case Task::kUuidRetrieval:
      return uuid_retrieval(options, budget, random, encoder);
    case Task::kToolCall:
      return tool_call(options, random);
    case Task::kNeedleZh:
      return needle_zh(random);
    case Task::kFiller:
      break;
  }
  return {};
}

}  // namespace kvasir
