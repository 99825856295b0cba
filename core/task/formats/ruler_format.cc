// NVIDIA/RULER: scripts/data/synthetic/*.py write these files, scripts/pred/call_api.py reads them.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

struct RulerTask {
  const char* prefix;  // of the task's name
  uint32_t max_new_tokens;
};
// scripts/data/synthetic/constants.py. The long names are those of its tasks' kinds.
constexpr RulerTask kTasks[] = {{"niah", 128},
                                {"vt", 30},
                                {"variable_tracking", 30},
                                {"cwe", 120},
                                {"common_words", 120},
                                {"fwe", 50},
                                {"freq", 50},
                                {"qa", 32}};
constexpr uint32_t kUsualTokens = 128;

// The last sentence of a question behind its question mark.
size_t answer_prefix_begin(const std::string& question) {
  const size_t mark = question.rfind('?');
  return mark == question.npos ? question.size() : mark + 1;
}

}  // namespace

SampleText read_ruler(Fields& fields, const ReadSampleOptions& options) {
  SampleText out;
  out.task = options.task;
  out.id = fields.label("index");
  AskedText asked;
  split_question(fields.text("input"), out.context, asked.question);
  if (fields.has("answer_prefix")) asked.question += fields.text("answer_prefix");
  asked.references = fields.texts("outputs");
  for (const std::string& reference : asked.references)
    asked.answer += (asked.answer.empty() ? " " : ", ") + reference;
  out.turns.push_back(std::move(asked));
  const bool is_qa = out.task.starts_with("qa");
  out.grading.scorer = is_qa ? Scorer::kStringPart : Scorer::kStringAll;
  out.grading.max_new_tokens = kUsualTokens;
  for (const RulerTask& task : kTasks)
    if (out.task.starts_with(task.prefix)) out.grading.max_new_tokens = task.max_new_tokens;
  fields.ignore({"length", "length_w_model_temp", "token_position_answer", "others", "truncation"});
  return out;
}

FormatJson ruler_json(const SampleText& sample, uint32_t length) {
  const std::string question = sample.frame.between + sample.turns[0].question + sample.frame.after;
  const size_t prefix = answer_prefix_begin(question);
  return {{"index", id_json(sample)},
          {"input", sample.frame.before + sample.context + question.substr(0, prefix)},
          {"outputs", sample.turns[0].references},
          {"length", length},
          {"length_w_model_temp", length},
          {"answer_prefix", question.substr(prefix)}};
}

}  // namespace kvasir
