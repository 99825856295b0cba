// Fields of a sample in JSON, with errors that say where they stand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <vector>

#include "core/task/formats/sample_file.h"

namespace kvasir {

using FormatJson = nlohmann::ordered_json;

class Fields {
 public:
  // `place`: "file.jsonl:3". Both must outlive it. Error(kInput) when it is no object.
  Fields(const FormatJson& object, std::string place);

  bool has(const std::string& field) const;
  std::string text(const std::string& field);   // Error(kInput) when missing or no text
  std::string label(const std::string& field);  // text or number, as text
  // A text, a number or a list of them, at least one.
  std::vector<std::string> texts(const std::string& field);
  uint32_t count(const std::string& field);  // a whole number from 0 on
  bool flag(const std::string& field);
  // Its own fields are the caller's.
  const FormatJson& list(const std::string& field);
  const FormatJson& value(const std::string& field) { return at(field); }  // anything
  // [begin, end] of bytes.
  Span span(const std::string& field);
  void ignore(std::initializer_list<const char*> fields);
  // Error(kInput) for a field that nobody asked for.
  void finish() const;
  [[noreturn]] void fail(const std::string& field, const std::string& problem) const;
  const std::string& place() const { return place_; }

 private:
  const FormatJson& at(const std::string& field);

  const FormatJson& object_;
  std::string place_;
  std::set<std::string> known_;
};

// Each of these reads or writes one format; see sample_file.h. `options` as given, its task filled.
SampleText read_kvasir(Fields& fields, const ReadSampleOptions& options);
SampleText read_ruler(Fields& fields, const ReadSampleOptions& options);
SampleText read_infinite_bench(Fields& fields, const ReadSampleOptions& options);
SampleText read_longbench2(Fields& fields, const ReadSampleOptions& options);
SampleText read_lm_eval(Fields& fields, const ReadSampleOptions& options);
FormatJson ruler_json(const SampleText& sample, uint32_t length);
FormatJson infinite_bench_json(const SampleText& sample);
FormatJson longbench2_json(const SampleText& sample);
FormatJson lm_eval_json(const SampleText& sample);

// A number where it is one.
FormatJson id_json(const SampleText& sample);
// The context's last line goes to the question, with its line end.
void split_question(const std::string& prompt, std::string& context, std::string& question);
// Whether the name is that of a task of ours; then its scorer.
std::optional<Scorer> usual_scorer(const std::string& task);

}  // namespace kvasir
