// Files of samples: our own and those of other harnesses, read and written. docs/tasks.md has a
// table of their fields.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/task/formats/sample_text.h"

namespace kvasir {

enum class SampleFormat : uint8_t {
  kKvasir,         // `kvasir task generate`
  kRuler,          // NVIDIA/RULER: index, input, outputs
  kInfiniteBench,  // OpenBMB/InfiniteBench: id, context, input, answer, options
  kLongBench2,     // THUDM/LongBench v2: _id, context, question, choice_A … choice_D, answer
  kLmEval,         // lm-evaluation-harness, samples of generate_until: doc_id, arguments, target
};
const char* name(SampleFormat format);  // "kvasir", "ruler", "infinitebench", …
std::vector<SampleFormat> sample_formats();
// Error(kInput) naming `flag` and the nearest format.
SampleFormat sample_format_by_name(const std::string& text, const std::string& flag);

// What a file does not say, or the user knows better.
struct ReadSampleOptions {
  std::optional<SampleFormat> format;  // none: by the fields of the first sample
  std::string task;                    // "": of the samples, else by the file's name
  std::optional<Scorer> scorer;        // none: of the samples, else of the task
  std::optional<uint32_t> max_new_tokens;
};

struct SampleFile {
  SampleFormat format = SampleFormat::kKvasir;
  std::vector<SampleText> samples;
};
// JSON lines, empty ones aside, or one JSON array. `path` names the file in errors and, where
// samples have no task's name, their task. Error(kInput) with the line, the field and what to do.
SampleFile read_samples(std::string_view bytes, const std::string& path,
                        const ReadSampleOptions& options);

// A line, without its end. `length`: tokens, where the format holds them. Error(kInput) when the
// format cannot hold the sample: kKvasir has records of its own
// (`kvasir task generate`) and is none of these.
std::string sample_line(SampleFormat format, const SampleText& sample, uint32_t length);

// What a model answered to the only turn, as the harness's scorer reads it.
std::string prediction_line(SampleFormat format, const SampleText& sample, const std::string& given,
                            double score);

}  // namespace kvasir
