// kvasir: parses the command line, runs one subcommand, prints errors, picks the exit code.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "core/error.h"
#include "core/platform/signal_stack.h"
#include "core/platform/standard_output.h"
#include "kernels/simd_target.h"
#include "tools/kvasir/cli/crash_report.h"
#include "tools/kvasir/cli/exit_code.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/llama_cpp_flags.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/blocked_plugins.h"

namespace {

// One line, whatever the message held.
void print_error(const char* text) {
  std::fputs("kvasir: error: ", stderr);
  for (const char* c = text; *c; ++c) std::fputc(*c == '\n' ? ' ' : *c, stderr);
  std::fputc('\n', stderr);
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  const auto list = app.get_subcommands([](const CLI::App*) { return true; });
  return {list.begin(), list.end()};
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names,
                         const std::string& before = "") {
  const std::string nearest = kvasir::nearest_name(word, names);
  return nearest.empty() ? "" : "; did you mean '" + before + nearest + "'?";
}

bool takes_words(const CLI::App& app) {
  const auto options = app.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

// Names the first word that is no subcommand or no flag; the parser's own message is vaguer.
std::string parse_problem(const CLI::App& app, const CLI::ParseError& error, int argc,
                          char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word.starts_with("--") && word.size() > 2) {
      std::vector<std::string> names;
      for (const CLI::Option* option : at->get_options())
        names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
      const std::string name = word.substr(2);
      if (std::find(names.begin(), names.end(), name) == names.end())
        return "unknown flag '" + word + "'" + did_you_mean(name, names, "--");
      continue;
    }
    const auto below = subcommands_of(*at);
    if (word.starts_with("-") || below.empty()) continue;
    std::vector<std::string> names;
    for (const CLI::App* command : below) names.push_back(command->get_name());
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end() && takes_words(*at)) continue;
    if (found == names.end())
      return "unknown subcommand '" + word + "'" + did_you_mean(word, names);
    at = below[static_cast<size_t>(found - names.begin())];
  }
  return error.what();
}

int exit_code_after_output(int code) {
  try {
    kvasir::tool::flush_standard_output();
    return code;
  } catch (const kvasir::Error& e) {
    print_error(e.what());
    return 2;
  }
}

// The subcommand's callback does its work; --help and --version print their text.
void parse_and_run(CLI::App& app, std::vector<std::string> arguments) {
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& e) {
    std::ostringstream text;
    app.exit(e, text);
    kvasir::tool::print_text(text.str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Kvasir: long-context LLM inference in which every KV-cache decision is a plugin"};
  app.name("kvasir");
  app.set_version_flag("--version", KVASIR_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  using namespace kvasir::tool;
  for (auto* add :
       {add_run, add_chat, add_plugin, add_config, add_model, add_plan, add_doctor, add_tokenize,
        add_ppl, add_compare, add_ab, add_task, add_bench, add_trace, add_cache})
    add(app);
  refuse_odd_numbers(app);
  open_standard_streams();
  kvasir::claim_standard_output();
  const kvasir::SignalStack signal_stack;
  install_crash_report(blocked_plugins_file());
  catch_interrupts();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error as a full disk is
  try {
    const char* simd = std::getenv("KVASIR_SIMD");
    if (simd && !kvasir::kernels::set_simd_target(simd))
      throw kvasir::input_error("KVASIR_SIMD=" + std::string(simd) +
                                ": expected avx2, avx512 or best, as far as this CPU has it");
    parse_and_run(app, normalise_arguments(argc, argv));
    flush_standard_output();
    stop_if_interrupted();  // too late to end it early
    return 0;
  } catch (const ExitWith& e) {
    return exit_code_after_output(e.code());
  } catch (const Interrupted& e) {
    std::fprintf(stderr, "kvasir: %s\n", e.what());
    return 130;
  } catch (const CLI::ParseError& e) {
    print_error((parse_problem(app, e, argc, argv) + "; see kvasir --help").c_str());
    return 2;
  } catch (const kvasir::Error& e) {
    print_error(e.what());
    return e.kind() == kvasir::ErrorKind::kInternal ? 1 : 2;
  } catch (const std::bad_alloc&) {
    print_error("out of memory: lower -c, or see `kvasir plan`");
    return 2;
  } catch (const std::exception& e) {
    print_error(e.what());
    return 1;
  }
}
