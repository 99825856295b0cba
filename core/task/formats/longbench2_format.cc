// LongBench v2 (arXiv:2412.15204): THUDM/LongBench pred.py with prompts/0shot.txt.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxNewTokens = 128;

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

Frame frame_of(const std::vector<std::string>& choices) {
  Frame out{"Please read the following text and answer the question below.\n\n<text>\n",
            "\n</text>\n\nWhat is the correct answer to this question: ", "\nChoices:\n"};
  for (size_t i = 0; i < choices.size(); ++i)
    out.after += std::string("(") + static_cast<char>('A' + i) + ") " + choices[i] + "\n";
  out.after += "\nFormat your response as follows: \"The correct answer is (insert answer here)\".";
  return out;
}

}  // namespace

SampleText read_longbench2(Fields& fields, const ReadSampleOptions& options) {
  SampleText out;
  out.task = options.task;
  out.id = fields.label("_id");
  out.context = stripped(fields.text("context"));
  for (const char* field : {"choice_A", "choice_B", "choice_C", "choice_D"})
    out.choices.push_back(stripped(fields.text(field)));
  const std::string letter = fields.text("answer");
  if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D')
    fields.fail("answer", "expected one of A, B, C and D");
  out.turns.push_back(
      {stripped(fields.text("question")), " The correct answer is (" + letter + ")", {letter}});
  out.grading = {Scorer::kLongBench2, kMaxNewTokens, {}};
  out.frame = frame_of(out.choices);
  fields.ignore({"domain", "sub_domain", "difficulty", "length"});
  return out;
}

FormatJson longbench2_json(const SampleText& sample) {
  if (sample.choices.size() != 4)
    throw input_error("--format longbench2: " + sample.task + " has no choices");
  return {{"_id", sample.id},
          {"domain", "Synthetic"},
          {"sub_domain", sample.task},
          {"difficulty", "easy"},
          {"length", "short"},
          {"question", stripped(sample.turns[0].question)},
          {"choice_A", sample.choices[0]},
          {"choice_B", sample.choices[1]},
          {"choice_C", sample.choices[2]},
          {"choice_D", sample.choices[3]},
          {"answer", sample.turns[0].references[0]},
          {"context", sample.context}};
}

}  // namespace kvasir
