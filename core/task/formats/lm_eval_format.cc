// EleutherAI/lm-evaluation-harness: the samples that `--log_samples` writes, one request each.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

constexpr uint32_t kUsualTokens = 256;  // of the harness, without max_gen_toks

struct GenerateRequest {
  std::string context;
  FormatJson settings;
};

// {"gen_args_0": {"arg_0": context, "arg_1": settings}}, or [[context, settings]] in older files.
GenerateRequest only_request(Fields& fields) {
  const FormatJson& arguments = fields.value("arguments");
  const FormatJson* parts = nullptr;
  if (arguments.size() == 1) parts = arguments.is_array() ? &arguments[0] : &*arguments.begin();
  const bool in_list = parts && parts->is_array() && parts->size() == 2;
  const bool named = parts && parts->is_object() && parts->size() == 2 &&
                     parts->contains("arg_0") && parts->contains("arg_1");
  if (in_list || named) {
    const FormatJson& context = in_list ? (*parts)[0] : (*parts)["arg_0"];
    const FormatJson& settings = in_list ? (*parts)[1] : (*parts)["arg_1"];
    if (context.is_string() && settings.is_object()) return {context.get<std::string>(), settings};
  }
  fields.fail("arguments",
              "expected one generate_until request, {\"gen_args_0\": {\"arg_0\": context, "
              "\"arg_1\": settings}} or [[context, settings]]; requests of multiple choice are not "
              "read: log the task's generate form");
}

void read_settings(const FormatJson& json, const std::string& place, Grading& grading) {
  Fields settings(json, place);
  if (settings.has("until")) {
    if (!json["until"].is_array() || !json["until"].empty())
      grading.stops = settings.texts("until");
    settings.ignore({"until"});
  }
  for (const char* field : {"max_gen_toks", "max_new_tokens", "max_tokens"})
    if (settings.has(field)) grading.max_new_tokens = settings.count(field);
  if (settings.has("do_sample") && settings.flag("do_sample"))
    settings.fail("do_sample", "answers are greedy here: set it to false");
  if (settings.has("temperature")) {
    if (json["temperature"] != 0)
      settings.fail("temperature", "answers are greedy here: set it to 0");
    settings.ignore({"temperature"});
  }
  settings.finish();
}

}  // namespace

SampleText read_lm_eval(Fields& fields, const ReadSampleOptions& options) {
  SampleText out;
  out.task = options.task;
  out.id = fields.label("doc_id");
  const GenerateRequest request = only_request(fields);
  AskedText asked;
  split_question(request.context, out.context, asked.question);
  asked.references = fields.texts("target");
  const std::string& target = asked.references[0];
  asked.answer = std::string(target.starts_with(' ') ? "" : " ").append(target);
  out.turns.push_back(std::move(asked));
  out.grading = {usual_scorer(out.task).value_or(Scorer::kExact), kUsualTokens, {}};
  read_settings(request.settings, fields.place() + ": `arguments`", out.grading);
  fields.ignore({"doc", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
                 "target_hash", "acc", "acc_norm", "exact_match", "f1", "em"});
  if (fields.has("metrics"))
    for (const std::string& metric : fields.texts("metrics")) fields.ignore({metric.c_str()});
  return out;
}

FormatJson lm_eval_json(const SampleText& sample) {
  const std::vector<std::string>& references = sample.turns[0].references;
  const FormatJson settings = {{"until", sample.grading.stops},
                               {"max_gen_toks", sample.grading.max_new_tokens},
                               {"do_sample", false}};
  return {{"doc_id", id_json(sample)},
          {"doc", {{"task", sample.task}}},
          {"target", references.size() == 1 ? FormatJson(references[0]) : FormatJson(references)},
          {"arguments", {{"gen_args_0", {{"arg_0", sample.prompt()}, {"arg_1", settings}}}}}};
}

}  // namespace kvasir
