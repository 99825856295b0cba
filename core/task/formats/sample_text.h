// A sample as text, without a tokenizer: what files hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/task.h"

namespace kvasir {

struct AskedText {
  std::string question;
  std::string answer;  // what stands behind the question when a later one is asked
  std::vector<std::string> references;
  bool operator==(const AskedText&) const = default;
};

// What a benchmark puts around the fields of its samples.
struct Frame {
  std::string before, between, after;  // the context; context and question; the question
  bool operator==(const Frame&) const = default;
};

struct SampleText {
  std::string task;  // its name, one of ours or not
  std::string id;    // of the benchmark, or a number
  std::string context;
  std::vector<AskedText> turns;  // at least one
  Grading grading;
  std::vector<std::string> choices;  // of LongBench v2: the texts of A, B, C and D
  Frame frame;                       // around the first question
  std::vector<Planted> planted;      // of our own format; bytes of context, frame.before included

  // All that stands before the first answer.
  std::string prompt() const;
};

// Error(kInput) when the sample asks nothing.
SampleText text_of(const Sample& sample);
// The context, each question and each answer are encoded by themselves. `index` numbers the samples
// of a file.
Sample tokenised(const SampleText& text, uint64_t index, PieceEncoder& encoder);

// The same question with four choices, the answer under a letter drawn from seed and index. The
// others are values that the context holds or, without three of them, the answer with other digits
// and letters. Error(kInput) when the sample has several turns or references.
SampleText with_choices(const SampleText& text, uint64_t seed, uint64_t index);

}  // namespace kvasir
