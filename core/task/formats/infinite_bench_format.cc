// OpenBMB/InfiniteBench: its data files hold id, context, input, answer and options; src/prompt.py
// puts a text around them, here that of yarn-mistral, which has no form of a conversation.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

struct InfiniteBenchTask {
  const char* name;
  Scorer scorer;
  uint32_t max_new_tokens;  // src/eval_utils.py
  Frame frame;
};
const std::vector<InfiniteBenchTask> kTasks = {
    {"passkey",
     Scorer::kPasskey,
     6,
     {"There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
      "them. I will quiz you about the important information there.\n\n",
      "\n\n", "\n\nThe pass key is"}},
    {"number_string",
     Scorer::kPasskey,
     12,
     {"There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you "
      "about the important information there.\n\n",
      "\n\n", "\n\nThe sequence of digits is"}},
    {"kv_retrieval",
     Scorer::kKvRetrieval,
     50,
     {"Extract the value corresponding to the specified key in the JSON object below.\n\n", "\n\n",
      ""}},
    {"longbook_qa_eng",
     Scorer::kQaF1,
     40,
     {"Read the book and answer the question. Be very concise in your answer.\n\n",
      "\n\nQuestion: ", "\nAnswer:"}},
    {"longbook_qa_chn",
     Scorer::kQaF1Zh,
     40,
     {"阅读以下书籍然后回答问题。\n\n", "\n\n问题：", "\n答案："}},
    {"longbook_choice_eng",
     Scorer::kChoice,
     40,
     {"Read the book and answer the question.\n\n", "\n\nQuestion: ", ""}},
    {"math_find", Scorer::kFirstNumber, 3, {"", "\n\n", ""}},
};

const InfiniteBenchTask* known_task(const std::string& task) {
  const auto it = std::find_if(kTasks.begin(), kTasks.end(),
                               [&](const InfiniteBenchTask& known) { return task == known.name; });
  return it == kTasks.end() ? nullptr : &*it;
}

std::string choice_frame(Fields& fields) {
  const std::vector<std::string> options = fields.texts("options");
  if (options.size() != 4) fields.fail("options", "expected four choices");
  std::string text;
  for (size_t i = 0; i < options.size(); ++i)
    text += std::string("\n") + static_cast<char>('A' + i) + ". " + options[i];
  return text + "\n\nThe letter of the correct answer is";
}

// "What is the largest number in the following list?" before "The largest number …".
std::string list_question(const std::string& input) {
  constexpr std::string_view kBefore = "The ", kAfter = " number";
  const size_t begin = input.find(kBefore), end = input.find(kAfter, begin);
  if (begin == input.npos || end == input.npos) return "";
  const std::string which = input.substr(begin + kBefore.size(), end - begin - kBefore.size());
  return "What is the " + which + " number in the following list?\n\n";
}

// compute_scores.py compares letters; the data say the text of the choice.
void add_letter(Fields& fields, std::vector<std::string>& references) {
  const std::vector<std::string> options = fields.texts("options");
  const auto it = std::find(options.begin(), options.end(), references[0]);
  if (it != options.end())
    references.insert(references.begin(),
                      std::string(1, static_cast<char>('A' + (it - options.begin()))));
}

}  // namespace

SampleText read_infinite_bench(Fields& fields, const ReadSampleOptions& options) {
  SampleText out;
  out.task = options.task;
  out.id = fields.label("id");
  out.context = fields.text("context");
  AskedText asked;
  asked.question = fields.text("input");
  asked.references = fields.texts("answer");
  const InfiniteBenchTask* known = known_task(out.task);
  if (known) {
    out.frame = known->frame;
    out.grading = {known->scorer, known->max_new_tokens, {}};
    if (known->scorer == Scorer::kFirstNumber) out.frame.before = list_question(asked.question);
    if (known->scorer == Scorer::kChoice) {
      out.frame.after = choice_frame(fields);
      add_letter(fields, asked.references);
    }
  } else if (const auto usual = usual_scorer(out.task)) {
    out.grading = {*usual, 64, {"\n"}};
  } else if (!options.scorer) {
    std::string all;
    for (const InfiniteBenchTask& task : kTasks)
      all += (all.empty() ? "" : ", ") + std::string(task.name);
    fields.fail("input", "which task is asked is unknown: name the file or give --samples-task (" +
                             all + "), or give --scorer");
  }
  asked.answer = " " + asked.references[0];
  out.turns.push_back(std::move(asked));
  fields.ignore({"options"});
  return out;
}

FormatJson infinite_bench_json(const SampleText& sample) {
  return {{"id", id_json(sample)},
          {"context", sample.context},
          {"input", sample.turns[0].question},
          {"answer", sample.turns[0].references},
          {"options", FormatJson::array()}};
}

}  // namespace kvasir
