// libFuzzer over files of samples: any bytes give an Error, or samples whose scorers take any
// answer, and which can be written for other harnesses and read again.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/task/formats/sample_file.h"
#include "core/task/scorers.h"
#include "tests/fuzz/seeds.h"

std::vector<kvasir::fuzz::Seed> kvasir::fuzz::seeds() {
  return {
      {"kvasir",
       R"({"task": "needle", "index": 1, "prompt": "a code 12.\nq", "turns": [{"question": "\nq",)"
       R"( "answer": " 12", "references": ["12"]}], "needles": [{"turn": 0, "depth": 0.5,)"
       R"( "bytes": [2, 10], "value_bytes": [7, 9]}], "scorer": "exact", "stops": []})"},
      {"ruler",
       R"({"index": 0, "input": "a\nWhat is b?", "outputs": ["c", "d"], "answer_prefix": " It is"})"},
      {"infinitebench",
       R"({"id": 0, "context": "a", "input": "b", "answer": ["B"], "options": ["A", "B", "C", "D"]})"},
      {"longbench2",
       R"([{"_id": "x", "context": "a", "question": "q", "choice_A": "1", "choice_B": "2",)"
       R"( "choice_C": "3", "choice_D": "4", "answer": "C"}])"},
      {"lm-eval", R"({"doc_id": 3, "target": "t", "arguments": {"gen_args_0": {"arg_0": "a\nq",)"
                  R"( "arg_1": {"until": ["\n"], "max_gen_toks": 5}}}, "metrics": ["m"], "m": 1})"},
  };
}

namespace {

using namespace kvasir;

// What is written reads again as the same prompt with the same right answers.
void check_written(SampleFormat format, const SampleText& sample) {
  std::string line;
  try {
    line = sample_line(format, sample, 0);
  } catch (const Error&) {
    return;  // several turns, or answers that the format cannot hold
  }
  ReadSampleOptions options;
  options.format = format;
  const SampleText again = read_samples(line, "data/passkey.jsonl", options).samples.at(0);
  if (again.prompt() != sample.prompt() || again.turns[0].references != sample.turns[0].references)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  SampleFile file;
  try {
    file = read_samples(std::string_view(reinterpret_cast<const char*>(data), size),
                        "data/passkey.jsonl", {});
  } catch (const Error&) {
    return 0;
  }
  for (const SampleText& sample : file.samples) {
    for (const AskedText& asked : sample.turns) {
      const double score = kvasir::score(sample.grading.scorer, asked.answer, asked.references);
      if (!(score >= 0 && score <= 1)) std::abort();
    }
    check_written(SampleFormat::kRuler, sample);
    check_written(SampleFormat::kLmEval, sample);
  }
  return 0;
}
