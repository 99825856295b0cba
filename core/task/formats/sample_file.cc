// See sample_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/formats/sample_file.h"

#include <algorithm>
#include <filesystem>
#include <regex>

#include "core/config/strategy.h"
#include "core/error.h"
#include "core/task/formats/fields.h"

namespace kvasir {
namespace {

using Reader = SampleText (*)(Fields&, const ReadSampleOptions&);

struct FormatInfo {
  SampleFormat format;
  const char* name;
  Reader read;
  std::vector<const char*> signs;  // fields by which the format is recognised
};
const std::vector<FormatInfo> kFormats = {
    {SampleFormat::kKvasir, "kvasir", read_kvasir, {"prompt", "turns"}},
    {SampleFormat::kRuler, "ruler", read_ruler, {"input", "outputs"}},
    {SampleFormat::kInfiniteBench,
     "infinitebench",
     read_infinite_bench,
     {"context", "input", "answer"}},
    {SampleFormat::kLongBench2, "longbench2", read_longbench2, {"context", "choice_A", "answer"}},
    {SampleFormat::kLmEval, "lm-eval", read_lm_eval, {"arguments", "target"}},
};

const FormatInfo& info_of(SampleFormat format) {
  return *std::find_if(kFormats.begin(), kFormats.end(),
                       [&](const FormatInfo& f) { return f.format == format; });
}

const FormatInfo& recognise(const FormatJson& sample, const std::string& place) {
  for (const FormatInfo& format : kFormats)
    if (sample.is_object() &&
        std::all_of(format.signs.begin(), format.signs.end(),
                    [&](const char* field) { return sample.contains(field); }))
      return format;
  std::string known;
  for (const FormatInfo& format : kFormats) {
    known += std::string(known.empty() ? "" : "; ") + format.name + ":";
    for (const char* field : format.signs) known += std::string(" ") + field;
  }
  throw input_error(place + ": its fields are of no known format (" + known +
                    "): convert the file, or name its format to see which field is missing");
}

// What harnesses put around the name of a task: RULER has TASK/validation.jsonl,
// lm-evaluation-harness samples_TASK_2026-11-25T18-32-48.255448.jsonl.
std::string task_of_file(const std::string& path) {
  static const std::regex kLogged(R"(samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?)");
  const std::filesystem::path file(path);
  const std::string stem = file.stem().string();
  if (std::smatch parts; std::regex_match(stem, parts, kLogged)) return parts[1];
  const bool is_split = stem == "validation" || stem == "test" || stem == "train";
  const std::string folder = file.parent_path().filename().string();
  return is_split && !folder.empty() ? folder : stem;
}

FormatJson parse(std::string_view text, const std::string& place) {
  try {
    return FormatJson::parse(text);
  } catch (const FormatJson::exception& e) {
    const std::string why = e.what();
    const size_t at = why.find("] ");
    throw input_error(place + ": no JSON: " + (at == why.npos ? why : why.substr(at + 2)) +
                      "; expected one sample per line, or one array of samples");
  }
}

class SampleReader {
 public:
  SampleReader(const std::string& path, const ReadSampleOptions& options)
      : path_(path), options_(options) {
    if (options_.task.empty()) options_.task = task_of_file(path);
    if (options.format) format_ = &info_of(*options.format);
  }

  void add(const FormatJson& sample, const std::string& place) {
    if (!format_) format_ = &recognise(sample, place);
    Fields fields(sample, place);
    SampleText text = format_->read(fields, options_);
    fields.finish();
    if (options_.scorer) text.grading.scorer = *options_.scorer;
    if (options_.max_new_tokens) text.grading.max_new_tokens = *options_.max_new_tokens;
    if (text.grading.max_new_tokens == 0)
      throw input_error(place + ": max_new_tokens must be above 0");
    if (text.prompt().empty()) throw input_error(place + ": the prompt is empty");
    samples_.push_back(std::move(text));
  }

  SampleFile finish() {
    if (samples_.empty()) throw input_error(path_ + ": holds no sample");
    return {format_->format, std::move(samples_)};
  }

 private:
  const std::string& path_;
  ReadSampleOptions options_;
  const FormatInfo* format_ = nullptr;
  std::vector<SampleText> samples_;
};

void read_lines(std::string_view bytes, const std::string& path, SampleReader& reader) {
  uint64_t n_lines = 0;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = bytes.substr(begin, end - begin);
    const std::string place = path + ":" + std::to_string(++n_lines);
    if (line.find_first_not_of(" \t\r") != line.npos) reader.add(parse(line, place), place);
    begin = end + 1;
  }
}

[[noreturn]] void refuse_own_format() {
  throw input_error("kvasir's own samples are written by task generate --format jsonl");
}

}  // namespace

const char* name(SampleFormat format) { return info_of(format).name; }

std::vector<SampleFormat> sample_formats() {
  std::vector<SampleFormat> out;
  for (const FormatInfo& format : kFormats) out.push_back(format.format);
  return out;
}

SampleFormat sample_format_by_name(const std::string& text, const std::string& flag) {
  std::vector<std::string> names;
  for (const FormatInfo& format : kFormats) {
    if (text == format.name) return format.format;
    names.emplace_back(format.name);
  }
  const std::string near = nearest_name(text, names);
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  throw input_error(flag + " " + text + ": no such format; " +
                    (near.empty() ? "there are " + all : "did you mean " + near + "?"));
}

SampleFile read_samples(std::string_view bytes, const std::string& path,
                        const ReadSampleOptions& options) {
  SampleReader reader(path, options);
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == bytes.npos || bytes[first] != '[') {
    read_lines(bytes, path, reader);
  } else {
    size_t n = 0;
    for (const FormatJson& sample : parse(bytes, path))
      reader.add(sample, path + ": entry " + std::to_string(++n));
  }
  return reader.finish();
}

std::string sample_line(SampleFormat format, const SampleText& sample, uint32_t length) {
  if (format == SampleFormat::kKvasir) refuse_own_format();
  if (sample.turns.size() != 1)
    throw input_error(std::string("--format ") + name(format) + ": " + sample.task +
                      " asks several questions in turn, which this format cannot hold: give jsonl");
  if (sample.grading.scorer == Scorer::kJsonObject)
    throw input_error(std::string("--format ") + name(format) +
                      ": no scorer of this harness knows " + "the answers of " + sample.task +
                      ": give jsonl");
  const auto json = [&] {
    switch (format) {
      case SampleFormat::kRuler:
        return ruler_json(sample, length);
      case SampleFormat::kInfiniteBench:
        return infinite_bench_json(sample);
      case SampleFormat::kLongBench2:
        return longbench2_json(sample);
      default:
        return lm_eval_json(sample);
    }
  }();
  return json.dump(-1, ' ', false, FormatJson::error_handler_t::replace);
}

std::string prediction_line(SampleFormat format, const SampleText& sample, const std::string& given,
                            double score) {
  if (format == SampleFormat::kKvasir) refuse_own_format();
  const std::vector<std::string>& references = sample.turns.at(0).references;
  FormatJson json;
  switch (format) {
    case SampleFormat::kRuler:
      json = {{"index", id_json(sample)},
              {"pred", given},
              {"input", sample.prompt()},
              {"outputs", references},
              {"others", FormatJson::object()},
              {"truncation", -1},
              {"length", -1}};
      break;
    case SampleFormat::kInfiniteBench:
      json = {{"id", id_json(sample)},
              {"prediction", given},
              {"ground_truth",
               references.size() == 1 ? FormatJson(references[0]) : FormatJson(references)}};
      break;
    case SampleFormat::kLongBench2:
      json = longbench2_json(sample);
      json["context"] = sample.context.substr(0, 1000);
      json["response"] = given;
      json["pred"] = nullptr;
      for (const char letter : {'A', 'B', 'C', 'D'}) {
        const std::vector<std::string> one{std::string(1, letter)};
        if (kvasir::score(Scorer::kLongBench2, given, one) == 1) json["pred"] = one[0];
      }
      json["judge"] = json["pred"] == json["answer"];
      break;
    default:
      json = lm_eval_json(sample);
      json["resps"] = FormatJson::array({FormatJson::array({given})});
      json["filtered_resps"] = FormatJson::array({given});
      json["metrics"] = FormatJson::array({name(sample.grading.scorer)});
      json[name(sample.grading.scorer)] = score;
  }
  return json.dump(-1, ' ', false, FormatJson::error_handler_t::replace);
}

}  // namespace kvasir
