// Files of samples: what is written is read again, and mistakes are named with their place.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/task/formats/sample_file.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

struct Maker {
  std::unique_ptr<Tokenizer> tokenizer = test::small_vocabulary(true);
  PieceEncoder encoder{*tokenizer};
  SampleText text(Task task, uint64_t index = 3) {
    return text_of(TaskGenerator(task, {}, 1500, encoder).make(7, index));
  }
};

SampleText only(const std::string& line, const ReadSampleOptions& options = {},
                const std::string& path = "needle.jsonl") {
  SampleFile file = read_samples(line, path, options);
  REQUIRE(file.samples.size() == 1);
  return file.samples[0];
}

std::string error_in(const Json& json, const ReadSampleOptions& options = {}) {
  return test::error_of(
      [&] { read_samples(std::string("\n").append(json.dump()), "f.jsonl", options); });
}

bool says(const std::string& message, const std::string& part) {
  CAPTURE(message);
  CAPTURE(part);
  const bool found = message.find(part) != message.npos;
  CHECK(found);
  return found;
}

TEST_SUITE_BEGIN("core/task/formats");

TEST_CASE("samples that are written for another harness are read again, and written the same") {
  Maker maker;
  for (const SampleFormat format :
       {SampleFormat::kRuler, SampleFormat::kInfiniteBench, SampleFormat::kLmEval}) {
    CAPTURE(std::string(name(format)));
    for (const Task task : {Task::kNeedle, Task::kNeedleMultiValue, Task::kVariableTracking,
                            Task::kCommonWords, Task::kFactsMost, Task::kNeedleZh}) {
      CAPTURE(std::string(name(task)));
      const SampleText sample = maker.text(task);
      const std::string line = sample_line(format, sample, 1500);
      const SampleText read = only(line, {}, std::string(name(task)) + ".jsonl");
      CHECK(read_samples(line, "x.jsonl", {{}, name(task), {}, {}}).format == format);
      CHECK(read.task == sample.task);
      CHECK(read.id == "3");
      CHECK(read.prompt() == sample.prompt());
      CHECK(read.context == sample.context);
      CHECK(read.turns[0].question == sample.turns[0].question);
      CHECK(read.turns[0].references == sample.turns[0].references);
      CHECK(sample_line(format, read, 1500) == line);
      if (format == SampleFormat::kLmEval) CHECK(read.grading == sample.grading);
    }
  }
}

TEST_CASE("choices are read again with their letter, and a wrong letter is wrong") {
  Maker maker;
  std::set<std::string> letters;
  for (uint64_t i = 0; i < 12; ++i) {
    const SampleText sample = with_choices(maker.text(Task::kNeedleMultiKey, i), 7, i);
    const SampleText read = only(sample_line(SampleFormat::kLongBench2, sample, 1500));
    CHECK(read.choices == sample.choices);
    CHECK(read.context == sample.context);
    CHECK(read.turns[0].references == sample.turns[0].references);
    CHECK(read.grading == sample.grading);
    const std::string letter = read.turns[0].references[0];
    letters.insert(letter);
    const std::string right = maker.text(Task::kNeedleMultiKey, i).turns[0].references[0];
    for (size_t c = 0; c < 4; ++c)
      CHECK((read.choices[c] == right) == (letter[0] == static_cast<char>('A' + c)));
    CHECK(read.prompt().find("\n(" + letter + ") " + right + "\n") != std::string::npos);
    CHECK(score(read.grading.scorer, "The correct answer is (" + letter + ").",
                read.turns[0].references) == 1);
  }
  CHECK(letters.size() > 2);
  CHECK(test::error_of([&] {
          with_choices(maker.text(Task::kNeedleMultiValue), 7, 0);
        }).find("needle_multi_value: choices need one question") == 0);
}

TEST_CASE("InfiniteBench's tasks get its prompt, limit and scorer") {
  const Json json = {{"id", 0},
                     {"context", "noise 71432 noise"},
                     {"input", "What is the pass key?"},
                     {"answer", {"71432"}},
                     {"options", Json::array()}};
  const SampleText read = only(json.dump(), {}, "data/passkey.jsonl");
  CHECK(read.task == "passkey");
  CHECK(read.prompt() ==
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "them. I will quiz you about the important information there.\n\nnoise 71432 "
        "noise\n\nWhat is the pass key?\n\nThe pass key is");
  CHECK(read.grading == Grading{Scorer::kPasskey, 6, {}});
  CHECK(Json::parse(sample_line(SampleFormat::kInfiniteBench, read, 0)) == json);
  Json choice = json;
  choice["options"] = {"Ann", "Bob", "Cid", "Dan"};
  choice["answer"] = {"Cid"};
  const SampleText chosen = only(choice.dump(), {}, "longbook_choice_eng.jsonl");
  CHECK(chosen.turns[0].references == std::vector<std::string>{"C", "Cid"});
  CHECK(chosen.prompt().ends_with("\nC. Cid\nD. Dan\n\nThe letter of the correct answer is"));
  Json list = json;
  list["input"] = "You should answer with only one number, no other words. The largest number is:";
  list["answer"] = 7;
  CHECK(only(list.dump(), {}, "math_find.jsonl")
            .prompt()
            .starts_with("What is the largest number in the following list?\n\nnoise"));
  says(error_in(json), "f.jsonl:2: field `input`: which task is asked is unknown");
}

TEST_CASE("RULER's samples end with the answer prefix, and their limits are those of the task") {
  const Json json = {{"index", 5},
                     {"input", "A special magic number.\nthe text\nWhat is the number for lamp?"},
                     {"outputs", {"1234567"}},
                     {"length", 99},
                     {"length_w_model_temp", 99},
                     {"answer_prefix", " The number for lamp is"},
                     {"token_position_answer", 3}};
  const SampleText read = only(json.dump(), {}, "4096/niah_single_1/validation.jsonl");
  CHECK(read.task == "niah_single_1");
  CHECK(read.id == "5");
  CHECK(read.context == "A special magic number.\nthe text");
  CHECK(read.turns[0].question == "\nWhat is the number for lamp? The number for lamp is");
  CHECK(read.grading == Grading{Scorer::kStringAll, 128, {}});
  CHECK(only(json.dump(), {}, "vt.jsonl").grading.max_new_tokens == 30);
  CHECK(only(json.dump(), {}, "qa_1.jsonl").grading == Grading{Scorer::kStringPart, 32, {}});
  const Json prediction =
      Json::parse(prediction_line(SampleFormat::kRuler, read, "it is 1234567", 1));
  CHECK(prediction["pred"] == "it is 1234567");
  CHECK(prediction["outputs"] == json["outputs"]);
  CHECK(prediction["index"] == 5);
}

TEST_CASE("a file's name says the task, without what a harness puts around it") {
  const Json json = {{"index", 5}, {"input", "a\nb"}, {"outputs", {"1"}}, {"length", 9}};
  const auto task = [&](const std::string& path) { return only(json.dump(), {}, path).task; };
  CHECK(task("data/vt.jsonl") == "vt");
  CHECK(task("vt/test.jsonl") == "vt");
  CHECK(task("out/samples_my_task_2026-11-25T18-32-48.255448.jsonl") == "my_task");
  CHECK(task("out/samples_my_task.jsonl") == "my_task");
  CHECK(task("out/samples_my_2026.jsonl") == "my_2026");
  CHECK(task("samples_.jsonl") == "samples_");
}

TEST_CASE("LongBench v2's file is one array") {
  Json one = {{"_id", "66f3"},        {"domain", "d"},     {"sub_domain", "s"},
              {"difficulty", "hard"}, {"length", "short"}, {"question", " Who? "},
              {"choice_A", "a "},     {"choice_B", "b"},   {"choice_C", "c"},
              {"choice_D", "d"},      {"answer", "B"},     {"context", "text\n"}};
  const SampleFile file = read_samples(Json::array({one, one}).dump(1), "data.json", {});
  CHECK(file.format == SampleFormat::kLongBench2);
  REQUIRE(file.samples.size() == 2);
  CHECK(
      file.samples[1].prompt() ==
      "Please read the following text and answer the question below.\n\n<text>\ntext\n</text>\n\n"
      "What is the correct answer to this question: Who?\nChoices:\n(A) a\n(B) b\n(C) c\n(D) d\n\n"
      "Format your response as follows: \"The correct answer is (insert answer here)\".");
  one["answer"] = "E";
  says(test::error_of([&] { read_samples(Json::array({one}).dump(), "data.json", {}); }),
       "data.json: entry 1: field `answer`: expected one of A, B, C and D");
  const Json said = Json::parse(
      prediction_line(SampleFormat::kLongBench2, file.samples[0], "The correct answer is (C)", 0));
  CHECK(said["pred"] == "C");
  CHECK(said["judge"] == false);
}

TEST_CASE("lm-evaluation-harness: both forms of requests, and its settings") {
  const Json settings = {
      {"until", {"\n\n"}}, {"max_gen_toks", 9}, {"do_sample", false}, {"temperature", 0.0}};
  Json json = {{"doc_id", 1},
               {"doc", {{"a", 1}}},
               {"target", "x"},
               {"arguments", Json::array({Json::array({"a\nq", settings})})},
               {"resps", Json::array()},
               {"metrics", {"my_metric"}},
               {"my_metric", 0.5}};
  const SampleText old_form = only(json.dump());
  json["arguments"] = {{"gen_args_0", {{"arg_0", "a\nq"}, {"arg_1", settings}}}};
  const SampleText new_form = only(json.dump());
  for (const SampleText& read : {old_form, new_form}) {
    CHECK(read.prompt() == "a\nq");
    CHECK(read.grading.stops == std::vector<std::string>{"\n\n"});
    CHECK(read.grading.max_new_tokens == 9);
  }
  Json sampled = json;
  sampled["arguments"]["gen_args_0"]["arg_1"]["do_sample"] = true;
  says(error_in(sampled), "f.jsonl:2: `arguments`: field `do_sample`: answers are greedy here");
  json["arguments"]["gen_args_0"]["arg_1"] = " yes";
  says(error_in(json), "requests of multiple choice are not read");
}

TEST_CASE("what is wrong in a file is named with its line, field and a remedy") {
  const Json good = {{"index", 0}, {"input", "a\nb"}, {"outputs", {"c"}}};
  CHECK(only(good.dump()).turns[0].references[0] == "c");
  const auto with = [&](const char* field, const Json& value) {
    Json json = good;
    json[field] = value;
    return json;
  };
  says(error_in(with("otputs", 1)), "f.jsonl:2: field `otputs`: unknown, did you mean `outputs`?");
  says(error_in(with("outputs", Json::array())), "field `outputs`: expected a text, or a list");
  says(error_in(with("outputs", {{{"a", 1}}})), "field `outputs`: expected a list of texts");
  says(error_in(with("input", 3)), "field `input`: expected a text");
  says(error_in(Json{{"x", 1}}), "f.jsonl:2: its fields are of no known format (kvasir: prompt");
  says(error_in(Json{{"x", 1}}, {SampleFormat::kRuler, "", {}, {}}), "field `index`: missing");
  says(error_in(Json::array({3})), "f.jsonl: entry 1: its fields are of no known format");
  says(test::error_of([] { read_samples("{\"a\": \n", "f.jsonl", {}); }), "f.jsonl:1: no JSON: ");
  says(test::error_of([] { read_samples("\n \n", "f.jsonl", {}); }), "f.jsonl: holds no sample");
  says(test::error_of([] { sample_format_by_name("rular", "--samples-format"); }),
       "did you mean ruler?");
  Maker maker;
  says(test::error_of([&] { sample_line(SampleFormat::kRuler, maker.text(Task::kMultiTurn), 0); }),
       "multi_turn asks several questions in turn");
}

TEST_CASE("a sample of a file becomes tokens of its parts, none across prompt and answer") {
  Maker maker;
  SampleText text = maker.text(Task::kMultiTurn);
  text.frame = {"Before.\n", "", " It is:"};
  text.planted.clear();
  const Sample sample = tokenised(text, 4, maker.encoder);
  CHECK(sample.index == 4);
  CHECK(sample.prompt() == text.prompt());
  REQUIRE(sample.turns.size() == text.turns.size());
  std::string decoded = maker.tokenizer->decode(sample.tokens.ids);
  CHECK(decoded == sample.text);
  for (size_t i = 0; i < sample.turns.size(); ++i) {
    const Turn& turn = sample.turns[i];
    const std::string after = i == 0 ? text.frame.after : "";
    CHECK(sample.bytes(turn.question) == text.turns[i].question + after);
    CHECK(sample.bytes(turn.answer) == text.turns[i].answer);
    const Span tokens = sample.token_span(turn.answer);
    CHECK(sample.tokens.ends[tokens.begin - 1] == turn.answer.begin);
    CHECK(sample.tokens.ends[tokens.end - 1] == turn.answer.end);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
