// kvasir: parses the command line, runs one subcommand, prints errors, picks the exit code.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "core/config/strategy.h"
#include "core/error.h"
#include "kernels/simd_target.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/options.h"

namespace {

// One line, whatever the message held.
void print_error(const char* text) {
  std::fputs("kvasir: error: ", stderr);
  for (const char* c = text; *c; ++c) std::fputc(*c == '\n' ? ' ' : *c, stderr);
  std::fputc('\n', stderr);
}

// A first word that is no subcommand is worth more than "a subcommand is required".
std::string parse_problem(const CLI::App& app, const CLI::ParseError& error, int argc,
                          char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (word.empty() || word[0] == '-') return error.what();
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), word) != names.end()) return error.what();
  const std::string nearest = kvasir::nearest_name(word, names);
  return "unknown subcommand '" + word + "'" +
         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Kvasir: long-context LLM inference in which every KV-cache decision is a plugin"};
  app.name("kvasir");
  app.set_version_flag("--version", KVASIR_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  using namespace kvasir::tool;
  for (auto* add : {add_run, add_chat, add_plugin, add_config, add_model, add_plan, add_doctor,
                    add_tokenize, add_ppl, add_compare, add_task})
    add(app);
  try {
    const char* simd = std::getenv("KVASIR_SIMD");
    if (simd && !kvasir::kernels::set_simd_target(simd))
      throw kvasir::input_error("KVASIR_SIMD=" + std::string(simd) +
                                ": expected avx2, avx512 or best, as far as this CPU has it");
    app.parse(normalise_arguments(argc, argv));
    return 0;
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
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
