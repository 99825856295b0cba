// kvasir task generate: samples as JSON lines, as plain text, or as token records for training.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/task/formats/sample_file.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {
namespace {

// A record with more answers teaches more. A task with fewer keys asks for all of them.
constexpr Range kTrainingQueries{8, 8};

struct GenerateFlags {
  TaskFlags task;
  std::string mix, length = "1024", tokenizer, output = "-", format = "jsonl";
  uint64_t n = 100;
  std::optional<uint64_t> seed;
  bool force = false;
};

Json pair(const Span& span) { return Json::array({span.begin, span.end}); }

Json to_json(const Sample& s) {
  Json out{{"task", s.label},        {"seed", s.seed},
           {"index", s.index},       {"length", s.tokens.ids.size()},
           {"prompt", s.prompt()},   {"answers", Json::array()},
           {"turns", Json::array()}, {"needles", Json::array()}};
  for (const Turn& turn : s.turns) {
    out["answers"].push_back(s.bytes(turn.answer));
    out["turns"].push_back({{"question", s.bytes(turn.question)},
                            {"answer", s.bytes(turn.answer)},
                            {"references", turn.references},
                            {"answer_bytes", pair(turn.answer)},
                            {"answer_tokens", pair(s.token_span(turn.answer))}});
  }
  for (const Planted& p : s.planted) {
    out["needles"].push_back({{"turn", p.turn},
                              {"depth", plain(static_cast<float>(p.depth))},
                              {"bytes", pair(p.bytes)},
                              {"tokens", pair(s.token_span(p.bytes))},
                              {"value", s.bytes(p.value)},
                              {"value_bytes", pair(p.value)},
                              {"value_tokens", pair(s.token_span(p.value))}});
  }
  out["scorer"] = name(s.grading.scorer);
  out["max_new_tokens"] = s.grading.max_new_tokens;
  out["stops"] = s.grading.stops;
  for (size_t i = 0; i < s.chunks.size(); ++i)
    out["chunks"].push_back({{"bytes", pair(s.chunks[i])}, {"tokens", pair(s.chunk_tokens(i))}});
  return out;
}

std::string line_of(const Sample& sample, const GenerateFlags& f, uint64_t seed) {
  if (f.format == "text") return sample.text;
  if (f.format == "jsonl") return to_json(sample).dump();
  const SampleFormat format = sample_format_by_name(f.format, "--format");
  SampleText text = text_of(sample);
  if (format == SampleFormat::kLongBench2) text = with_choices(text, seed, sample.index);
  return sample_line(format, text, static_cast<uint32_t>(sample.tokens.ids.size()));
}

// n samples of each task, task by task.
void write_samples(const GenerateFlags& f, uint32_t length, PieceEncoder& encoder) {
  const TaskOptions options = task_options(f.task);
  std::vector<TaskGenerator> generators;
  for (const Task task : parse_tasks(f.task.tasks, "--task"))
    generators.emplace_back(task, options, length, encoder);
  const bool as_text = f.format == "text";
  if (!as_text && f.format != "jsonl" && generators.size() > 1)
    throw input_error("--format " + f.format + ": its files hold one task: give one to --task");
  const uint64_t seed = f.seed.value_or(as_text ? kFirstTrainingSeed : 1);
  Output out(f.output, Output::As::kWhole);
  std::optional<ProgressBar> bar;  // not between the lines of a terminal
  if (!out.is_stdout()) bar.emplace("generate");
  uint64_t done = 0;
  for (uint64_t i = 0; f.n == 0 || i < f.n; ++i) {
    for (TaskGenerator& generator : generators) {
      const Sample sample = generator.make(seed, i);
      if (!out.write(line_of(sample, f, seed) + "\n")) return;
      stop_if_interrupted();
      if (bar && f.n) bar->update(++done, f.n * generators.size());
    }
  }
  out.finish();
}

void write_records(const GenerateFlags& f, uint32_t length, PieceEncoder& encoder) {
  const uint64_t seed = f.seed.value_or(kFirstTrainingSeed);
  if (seed < kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(seed) +
                      ": seeds below 4294967296 are kept for evaluation, --format ids is for "
                      "training: give a larger one");
  std::vector<MixPart> mix = f.mix.empty() ? std::vector<MixPart>() : parse_mix(f.mix, "--mix");
  if (mix.empty())
    for (const Task task : parse_tasks(f.task.tasks, "--task")) mix.push_back({task, 1});
  TaskOptions options = task_options(f.task);
  if (!options.queries.given()) options.queries = kTrainingQueries;
  RecordStream stream(mix, options, length, seed, encoder);
  Output out(f.output, Output::As::kWhole);
  std::vector<uint8_t> bytes(size_t{length} * 3);
  for (uint64_t i = 0; f.n == 0 || i < f.n; ++i) {
    const Record& record = stream.next();
    for (size_t t = 0; t < length; ++t) {
      bytes[2 * t] = static_cast<uint8_t>(record.ids[t] & 0xFF);
      bytes[2 * t + 1] = static_cast<uint8_t>(record.ids[t] >> 8);
    }
    std::copy(record.mask.begin(), record.mask.end(),
              bytes.begin() + static_cast<ptrdiff_t>(2 * size_t{length}));
    if (!out.write(bytes.data(), bytes.size())) return;
    stop_if_interrupted();
  }
  out.finish();
}

void generate_tasks(const GenerateFlags& f) {
  if (f.task.tasks.empty() && (f.mix.empty() || f.format != "ids"))
    throw input_error("give --task NAME, several separated by commas, or all" +
                      std::string(f.mix.empty() ? "" : " (--mix goes with --format ids)"));
  const uint64_t length = parse_count(f.length, "--length");
  check_overwrite(f.output, f.force);
  const GgufFile file = GgufFile::open(f.tokenizer);
  const auto tokenizer = Tokenizer::from_gguf(file);
  PieceEncoder encoder(*tokenizer);
  if (f.format == "ids") return write_records(f, static_cast<uint32_t>(length), encoder);
  write_samples(f, static_cast<uint32_t>(length), encoder);
}

}  // namespace

void add_task_generate(CLI::App& task) {
  auto* c = task.add_subcommand("generate", "Write samples with their answers and positions");
  auto f = std::make_shared<GenerateFlags>();
  std::vector<std::string> names;
  for (const Task known : all_tasks()) names.emplace_back(name(known));
  c->add_option("--task", f->task.tasks,
                "all, or some of " + join(names, ", ") +
                    " (all: those up to variable_tracking; `kvasir task list` says what they ask)");
  c->add_option("--mix", f->mix, "Records of several tasks by weight: passkey=1,repeat=3");
  c->add_option("--length", f->length, "Tokens of prompt and answers, BOS included (1024)");
  c->add_option("-n", f->n, "Samples of each task, or records; 0: until the reader closes");
  c->add_option("--seed", f->seed,
                "Below 4294967296 for evaluation (1), from there on for training (4294967296)");
  c->add_option("--tokenizer,-m,--model", f->tokenizer, "Model or vocabulary (GGUF)")->required();
  c->add_option("-o,--output", f->output, "File, or - for stdout");
  c->add_flag("--force", f->force, "Overwrite the file");
  c->add_option(
       "--format", f->format,
       "jsonl, text (as trained on), ids (records of LENGTH uint16 and LENGTH mask bytes); for "
       "other harnesses ruler, infinitebench, longbench2, lm-eval (docs/tasks.md)")
      ->check(CLI::IsMember(
          {"jsonl", "text", "ids", "ruler", "infinitebench", "longbench2", "lm-eval"}));
  add_task_flags(*c, f->task);
  c->callback([=] { generate_tasks(*f); });
}

}  // namespace kvasir::tool
