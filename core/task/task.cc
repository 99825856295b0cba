// Putting a script into a text of the wanted length; see task.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/task.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/task/prose.h"
#include "core/task/statements.h"

namespace kvasir {
namespace {

constexpr uint32_t kParagraphSentences = 7;  // on average
constexpr uint32_t kFitTries = 8;            // sentences drawn for the last gap
constexpr uint32_t kFitRounds = 3;           // times the rest is filled
constexpr uint32_t kMinimumDraws = 16;

constexpr uint32_t kAnswerRoom = 8;  // tokens beyond the expected answer

// A sentence of filler with what separates it from the text before.
std::string filler_sentence(Filler filler, TaskRandom& random) {
  if (filler == Filler::kChinese) return std::string("\n").append(prose_sentence_zh(random));
  const char* between = random.chance(kParagraphSentences) ? "\n" : " ";
  return std::string(between).append(prose_sentence(random));
}

class Composer {
 public:
  Composer(const Script& script, TaskRandom& random, PieceEncoder& encoder)
      : script_(script), random_(random), encoder_(encoder) {}

  size_t fixed_tokens() const {
    size_t n = encoder_.tokenizer().add_bos() ? 1 : 0;
    for (const Statement& s : script_.statements) n += encoder_.count(s.text);
    for (const Question& q : script_.questions)
      n += encoder_.count(q.text) + encoder_.count(q.answer);
    return n + (script_.questions.empty() ? 0 : 1);  // the last line end
  }

  // Sentences until no further one fits. The parts' tokens only estimate the whole's, where a full
  // stop and a line end are one token: what is over is taken off again, what is left filled.
  void compose(size_t length, Sample& sample) {
    depths_ = script_.depths;
    if (depths_.empty()) {
      depths_.resize(script_.statements.size());
      for (double& depth : depths_) depth = random_.unit();
      std::sort(depths_.begin(), depths_.end());
    }
    const size_t fixed = fixed_tokens();
    fill(length > fixed ? length - fixed : 0);
    for (uint32_t round = 0;;) {
      assemble(sample);
      const size_t n = sample.tokens.ids.size(), sentences = filler_.size();
      if (n > length && !filler_.empty()) {
        filler_.pop_back();
      } else if (n >= length || ++round > kFitRounds) {
        return;
      } else {
        fill(length - n);
        if (filler_.size() == sentences) return;
      }
    }
  }

 private:
  struct Sentence {
    std::string text;
    size_t tokens;
  };

  void fill(size_t budget) {
    if (script_.filler == Filler::kNone) return;
    size_t used = 0;
    for (uint32_t misses = 0; misses < kFitTries;) {
      std::string text = filler_sentence(script_.filler, random_);
      const size_t tokens = encoder_.count(text);
      if (used + tokens > budget) {
        ++misses;
        continue;
      }
      used += tokens;
      filler_.push_back({std::move(text), tokens});
    }
  }

  void append(Sample& sample, const std::string& text, bool line_before) {
    const bool first = sample.text.empty();
    const size_t begin = sample.text.size();
    sample.text.append(text, first ? 1 : 0);
    if (line_before && !first && text[0] == ' ') sample.text[begin] = '\n';
  }

  // The gap whose filler before it comes nearest to the statement's depth.
  void assemble(Sample& sample) {
    sample.text.clear();
    sample.planted.clear();
    sample.turns.clear();
    size_t total = 0, before = 0, next = 0;
    for (const Sentence& s : filler_) total += s.tokens;
    bool line_before = false;
    std::vector<size_t> borders;  // of chunks
    for (const Sentence& s : filler_) {
      // Where the encoder cuts: before a space, or behind a line end.
      while (is_border(borders.size() + 1, before, total))
        borders.push_back(sample.text.size() + (s.text[0] == '\n' ? 1 : 0));
      const double middle = static_cast<double>(before) + 0.5 * static_cast<double>(s.tokens);
      while (next < depths_.size() && depths_[next] * static_cast<double>(total) < middle)
        plant(sample, script_.statements[next++], line_before);
      append(sample, s.text, line_before);
      line_before = false;
      before += s.tokens;
    }
    while (next < depths_.size()) plant(sample, script_.statements[next++], line_before);
    if (script_.splits_statements)  // before the space before the value
      for (const Planted& p : sample.planted) borders.push_back(p.value.begin - 1);
    divide(sample, borders);
    for (const Question& q : script_.questions) ask(sample, q);
    if (!script_.questions.empty()) sample.text += '\n';
    sample.tokens = encoder_.encode(sample.text);
    const size_t prompt = sample.turns.empty() ? sample.tokens.ids.size()
                                               : sample.token_span(sample.turns[0].answer).begin;
    for (Planted& p : sample.planted)
      p.depth = static_cast<double>(sample.token_span(p.bytes).begin) /
                static_cast<double>(std::max<size_t>(prompt, 1));
  }

  // Whether chunk `chunk` begins before filler that has `before` of `total` tokens before it.
  bool is_border(size_t chunk, size_t before, size_t total) const {
    return !script_.splits_statements && chunk < script_.n_chunks &&
           before * script_.n_chunks >= total * chunk && before > 0;
  }

  static void divide(Sample& sample, const std::vector<size_t>& borders) {
    sample.chunks.clear();
    if (borders.empty()) return;
    size_t begin = 0;
    for (const size_t border : borders) {
      sample.chunks.push_back({begin, border});
      begin = border;
    }
    sample.chunks.push_back({begin, sample.text.size()});
  }

  void plant(Sample& sample, const Statement& s, bool& line_before) {
    append(sample, s.text, line_before);
    line_before = s.text[0] == '\n';
    const size_t end = sample.text.size(), size = s.text.size();
    // The separating first byte is not part of the statement.
    sample.planted.push_back(
        {{end - size + 1, end}, {end - size + s.value.begin, end - size + s.value.end}, s.turn, 0});
  }

  static void ask(Sample& sample, const Question& q) {
    const size_t begin = sample.text.size();
    sample.text.append(q.text, sample.text.empty() ? 1 : 0);
    const size_t middle = sample.text.size();
    sample.text += q.answer;
    sample.turns.push_back({{begin, middle}, {middle, sample.text.size()}, q.references});
    if (q.references.empty())
      sample.turns.back().references = {q.answer.substr(q.answer[0] == ' ' ? 1 : 0)};
  }

  const Script& script_;
  TaskRandom& random_;
  PieceEncoder& encoder_;
  std::vector<Sentence> filler_;
  std::vector<double> depths_;  // of the statements, ascending
};

// Whether one statement alone answers, and may stand anywhere.
bool has_one_needle(const Script& script) {
  return script.filler != Filler::kNone && script.depths.empty() &&
         std::count_if(script.statements.begin(), script.statements.end(),
                       [](const Statement& s) { return s.turn >= 0; }) == 1;
}

// The statement that answers at `depth`, the others anywhere.
void place_needle(Script& script, double depth, TaskRandom& random) {
  std::vector<std::pair<double, Statement>> placed;
  for (Statement& s : script.statements) {
    const double at = random.unit();
    placed.emplace_back(s.turn >= 0 ? depth : at, std::move(s));
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  script.statements.clear();
  for (auto& [at, s] : placed) {
    script.depths.push_back(at);
    script.statements.push_back(std::move(s));
  }
}

}  // namespace

std::string Sample::prompt() const {
  return turns.empty() ? text : text.substr(0, turns[0].answer.begin);
}

Span Sample::chunk_tokens(size_t i) const {
  const size_t end =
      i + 1 < chunks.size() ? token_span(chunks[i + 1]).begin : token_span(turns[0].question).begin;
  return {token_span(chunks[i]).begin, end};
}

Span Sample::token_span(const Span& span) const {
  const auto& ends = tokens.ends;
  const auto first = std::upper_bound(ends.begin(), ends.end(), span.begin);
  const auto last = std::lower_bound(first, ends.end(), span.end);
  return {static_cast<size_t>(first - ends.begin()),
          static_cast<size_t>(last - ends.begin()) + (last != ends.end())};
}

TaskGenerator::TaskGenerator(Task task, const TaskOptions& options, uint32_t length,
                             PieceEncoder& encoder)
    : task_(task), options_(options), length_(length), encoder_(encoder) {
  size_t minimum = 1;
  for (uint32_t i = 0; i < kMinimumDraws; ++i) {
    TaskRandom random(i);
    const Script script = write_script(task_, options_, 0, random, encoder_);
    if (!options_.depths.empty() && !has_one_needle(script))
      throw input_error(std::string("--depths: ") + name(task_) +
                        " has no single statement that could be placed: give passkey, "
                        "number_string, needle, needle_multi_key, needle_zh");
    minimum = std::max(minimum, Composer(script, random, encoder_).fixed_tokens());
  }
  if (length_ < minimum)
    throw input_error("--length " + std::to_string(length_) + ": " + name(task_) +
                      " needs at least " + std::to_string(minimum) +
                      " tokens with this tokenizer and these options");
}

Sample TaskGenerator::make(uint64_t seed, uint64_t index) {
  TaskRandom random(TaskRandom::state_of(seed, static_cast<uint64_t>(task_), index));
  Sample sample;
  sample.task = task_;
  sample.label = name(task_);
  sample.seed = seed;
  sample.index = index;
  const size_t bos = encoder_.tokenizer().add_bos() ? 1 : 0;
  Script script = write_script(task_, options_, length_ - bos - 1, random, encoder_);
  if (!options_.depths.empty())
    place_needle(script, options_.depths[index % options_.depths.size()], random);
  Composer(script, random, encoder_).compose(length_, sample);
  sample.grading = {info(task_).scorer, 0, {"\n"}};
  for (const Turn& turn : sample.turns) {
    const Span tokens = sample.token_span(turn.answer);
    sample.grading.max_new_tokens =
        std::max(sample.grading.max_new_tokens,
                 static_cast<uint32_t>(tokens.end - tokens.begin) + kAnswerRoom);
  }
  return sample;
}

}  // namespace kvasir
