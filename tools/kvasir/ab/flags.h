// Flags of kvasir ab: those that declare a run, and those that may be given anew when it goes on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/kvasir/ab/meta.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {

struct AbFlags {
  std::vector<std::string> arms, strategies;  // without and with -s
  TaskFlags task;
  SampleFileFlags samples;
  std::string length, sweep, stop_when, output, resume;
  std::vector<std::string> fail_if;
  uint32_t n = 50, n_questions = 1, n_parallel = 1, patience = 300, n_layer_samples = 1;
  double margin = 0;  // points
  double most_attended = kMostAttendedPercent;
  bool question_in_prompt = false, no_ladder = false, quick = false, markdown = false;
};

std::vector<std::string> arms_of(const AbFlags& flags);

void add_declared_flags(CLI::App& app, Options& options, AbFlags& flags);
// What says how a run ends and where it goes: may be given anew with --resume.
void add_run_flags(CLI::App& app, Options& options, AbFlags& flags);

// Reads files of samples, where they are given. Error(kInput) names the flag.
AbDeclared declared_of(const Options& options, const AbFlags& flags);
// Finds mistakes that need no model.
void check_flags(const Options& options, const AbFlags& flags, const AbDeclared& declared);

// The declared flags that were given, as words of a command line, environment included.
std::vector<std::string> words_of(const CLI::App& app);
// A flag beside --resume that the run has declared is an error; what the environment says is not.
void refuse_declared(const CLI::App& app);

}  // namespace kvasir::tool
