// The records of `kvasir task generate`.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

AskedText read_turn(const FormatJson& json, const std::string& place) {
  Fields fields(json, place);
  AskedText out;
  out.question = fields.text("question");
  out.answer = fields.text("answer");
  if (fields.has("references")) {
    out.references = fields.texts("references");
  } else {
    const size_t begin = out.answer.find_first_not_of(' ');
    out.references = {begin == std::string::npos ? "" : out.answer.substr(begin)};
  }
  fields.ignore({"answer_bytes", "answer_tokens"});
  fields.finish();
  return out;
}

Planted read_needle(const FormatJson& json, const std::string& place, size_t prompt_bytes) {
  Fields fields(json, place);
  Planted out;
  const FormatJson* turn = fields.has("turn") ? &json["turn"] : nullptr;
  if (!turn || !turn->is_number_integer()) fields.fail("turn", "expected a number, or -1");
  out.turn = turn->get<int>();
  if (!fields.has("depth") || !json["depth"].is_number())
    fields.fail("depth", "expected a number, 0 to 1");
  out.depth = json["depth"].get<double>();
  out.bytes = fields.span("bytes");
  out.value = fields.span("value_bytes");
  if (out.bytes.end > prompt_bytes || out.value.end > prompt_bytes)
    fields.fail("bytes", "lies behind the end of the prompt");
  fields.ignore({"turn", "depth", "tokens", "value", "value_tokens"});
  fields.finish();
  return out;
}

}  // namespace

SampleText read_kvasir(Fields& fields, const ReadSampleOptions& options) {
  SampleText out;
  out.task = fields.has("task") ? fields.text("task") : options.task;
  out.id = fields.has("index") ? fields.label("index") : "0";
  const std::string prompt = fields.text("prompt");
  size_t n = 0;
  for (const FormatJson& turn : fields.list("turns"))
    out.turns.push_back(read_turn(turn, fields.place() + ": `turns` " + std::to_string(++n)));
  if (out.turns.empty()) fields.fail("turns", "asks nothing: expected at least one");
  const std::string& question = out.turns[0].question;
  if (!prompt.ends_with(question))
    fields.fail("prompt", "must end with the first question of `turns`");
  out.context = prompt.substr(0, prompt.size() - question.size());
  n = 0;
  if (fields.has("needles"))
    for (const FormatJson& needle : fields.list("needles"))
      out.planted.push_back(read_needle(
          needle, fields.place() + ": `needles` " + std::to_string(++n), prompt.size()));
  const auto usual = usual_scorer(out.task);
  if (fields.has("scorer"))
    out.grading.scorer = scorer_by_name(fields.text("scorer"), fields.place() + ": field `scorer`");
  else if (usual)
    out.grading.scorer = *usual;
  else if (!options.scorer)
    fields.fail("scorer",
                "missing, and " + out.task + " is no task of ours: add it, or give --scorer");
  if (fields.has("max_new_tokens")) out.grading.max_new_tokens = fields.count("max_new_tokens");
  out.grading.stops = {"\n"};
  if (fields.has("stops")) {
    out.grading.stops.clear();
    if (!fields.list("stops").empty()) out.grading.stops = fields.texts("stops");
  }
  fields.ignore({"seed", "length", "answers", "chunks"});
  return out;
}

}  // namespace kvasir
