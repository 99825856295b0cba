// kvasir task score: predictions of any program, scored as published.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <sstream>

#include "core/error.h"
#include "core/task/scorers.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

struct ScoreFlags {
  std::string file, scorer;
  bool json = false;
};

struct Scores {
  std::string file;
  Scorer scorer;
  uint64_t n = 0;
  double sum = 0;
};

Json to_json(const Scores& s) {
  return {{"file", s.file},
          {"scorer", name(s.scorer)},
          {"samples", s.n},
          {"score", 100 * s.sum / static_cast<double>(s.n)}};
}

std::string to_text(const Scores& s) {
  return format("%s: %.2f %% over %llu predictions\n", name(s.scorer),
                100 * s.sum / static_cast<double>(s.n), static_cast<unsigned long long>(s.n));
}

// A string, or a list of strings.
std::vector<std::string> references_of(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

void add_line(const std::string& line, Scores& scores) {
  const Json row = Json::parse(line);
  const bool is_ruler = row.contains("pred");  // its name of the prediction
  const std::string prediction = row.at(is_ruler ? "pred" : "prediction");
  const auto references = references_of(row.at(is_ruler ? "outputs" : "ground_truth"));
  scores.sum += score(scores.scorer, prediction, references);
  ++scores.n;
}

void score_file(const ScoreFlags& f) {
  Scores scores{f.file, scorer_by_name(f.scorer, "--scorer")};
  std::istringstream lines(read_file(f.file, "FILE"));
  uint64_t n_lines = 0;
  for (std::string line; std::getline(lines, line);) {
    ++n_lines;
    if (line.empty()) continue;
    try {
      add_line(line, scores);
    } catch (const Json::exception& e) {
      throw input_error(f.file + ":" + std::to_string(n_lines) +
                        ": expected {\"prediction\": text, \"ground_truth\": text or texts} or "
                        "RULER's {\"pred\", \"outputs\"}: " +
                        e.what());
    }
  }
  if (scores.n == 0) throw input_error(f.file + ": holds no prediction");
  print(scores, f.json);
}

}  // namespace

void add_task_score(CLI::App& task) {
  auto* c = task.add_subcommand("score", "Score predictions that some program made");
  auto f = std::make_shared<ScoreFlags>();
  std::vector<std::string> names;
  for (const Scorer scorer : all_scorers()) names.emplace_back(name(scorer));
  c->add_option("FILE", f->file,
                "JSON lines with prediction and ground_truth, or RULER's pred and outputs")
      ->required();
  c->add_option("--scorer", f->scorer, join(names, ", "))->required();
  add_json(*c, f->json);
  c->footer(
      "passkey and kv_retrieval are InfiniteBench's rules, needle is OpenCompass's (a wrong answer "
      "that is near the right one still earns up to 20 %), string_match_all and string_match_part "
      "are RULER's.");
  c->callback([=] { score_file(*f); });
}

}  // namespace kvasir::tool
