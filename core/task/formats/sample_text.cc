// See sample_text.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/formats/sample_text.h"

#include <algorithm>

#include "core/error.h"
#include "core/task/random.h"

namespace kvasir {
namespace {

constexpr size_t kChoices = 4;
constexpr uint64_t kChoiceStream = 0x2000;  // tells it from the streams of tasks

bool is_lower_hex_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); }

// Each letter or digit may become another of its kind; at least one does.
std::string altered(const std::string& text, TaskRandom& random) {
  std::string out = text;
  for (char& c : out) {
    if (!is_lower_hex_or_digit(c) || !random.chance(2)) continue;
    c = static_cast<char>(c <= '9' ? '0' + random.below(10) : 'a' + random.below(6));
  }
  return out;
}

}  // namespace

std::string SampleText::prompt() const {
  return frame.before + context + frame.between + turns[0].question + frame.after;
}

SampleText text_of(const Sample& sample) {
  if (sample.turns.empty()) throw input_error(sample.label + " asks nothing: choose another task");
  SampleText out;
  out.task = sample.label;
  out.id = std::to_string(sample.index);
  out.context = sample.text.substr(0, sample.turns[0].question.begin);
  for (const Turn& turn : sample.turns)
    out.turns.push_back({sample.bytes(turn.question), sample.bytes(turn.answer), turn.references});
  out.grading = sample.grading;
  out.planted = sample.planted;
  return out;
}

Sample tokenised(const SampleText& text, uint64_t index, PieceEncoder& encoder) {
  Sample out;
  out.label = text.task;
  out.index = index;
  out.grading = text.grading;
  out.planted = text.planted;
  std::vector<std::string> parts{text.prompt()};
  size_t question = parts[0].size() - text.frame.after.size() - text.turns[0].question.size();
  for (size_t turn = 0; turn < text.turns.size(); ++turn) {
    const AskedText& asked = text.turns[turn];
    if (turn > 0) parts.push_back(asked.question);
    parts.push_back(asked.answer);
    const size_t answer = turn == 0 ? parts[0].size() : question + asked.question.size();
    out.turns.push_back(
        {{question, answer}, {answer, answer + asked.answer.size()}, asked.references});
    question = answer + asked.answer.size();
  }
  for (const std::string& part : parts) out.text += part;
  out.tokens = encoder.encode_parts(parts);
  return out;
}

SampleText with_choices(const SampleText& text, uint64_t seed, uint64_t index) {
  if (text.turns.size() != 1 || text.turns[0].references.size() != 1)
    throw input_error(text.task + ": choices need one question with one right answer");
  SampleText out = text;
  const std::string right = text.turns[0].references[0];
  TaskRandom random(TaskRandom::state_of(seed, kChoiceStream, index));
  std::vector<std::string> others;
  for (const Planted& p : text.planted) {
    const std::string value = text.context.substr(p.value.begin, p.value.end - p.value.begin);
    if (p.turn < 0 && value != right && value.size() <= 2 * right.size()) others.push_back(value);
  }
  random.shuffle(std::span<std::string>(others));
  for (uint32_t tries = 0; others.size() + 1 < kChoices; ++tries) {
    std::string other = altered(right, random);
    if (tries > 100) other += std::to_string(tries);
    if (other != right && std::find(others.begin(), others.end(), other) == others.end())
      others.push_back(std::move(other));
  }
  others.resize(kChoices - 1);
  const size_t letter = random.below(kChoices);
  others.insert(others.begin() + static_cast<ptrdiff_t>(letter), right);
  out.choices = std::move(others);
  const std::string name(1, static_cast<char>('A' + letter));
  out.turns[0].answer = " The correct answer is (" + name + ")";
  out.turns[0].references = {name};
  out.grading = {Scorer::kLongBench2, 128, {}};
  return out;
}

}  // namespace kvasir
