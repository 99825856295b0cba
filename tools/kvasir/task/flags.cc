// See flags.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/flags.h"

#include <CLI/CLI.hpp>

#include <charconv>

#include "core/error.h"
#include "tools/kvasir/cli/parse.h"

namespace kvasir::tool {
namespace {

bool read_number(const std::string& text, uint32_t& value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

// "4" or "4-8"; "" stands for the task's own range.
Range parse_range(const std::string& text, const std::string& flag) {
  if (text.empty()) return {};
  const size_t dash = text.find('-');
  Range range;
  const bool first = read_number(text.substr(0, dash), range.first);
  const bool last = dash == text.npos ? (range.last = range.first, first)
                                      : read_number(text.substr(dash + 1), range.last);
  if (!first || !last || range.first == 0 || range.last < range.first)
    throw input_error(flag + " " + text + ": expected a number above 0 or a range, as 4-8");
  return range;
}

std::vector<double> parse_depths(const std::string& list) {
  std::vector<double> out;
  if (list.empty()) return out;
  for (const uint32_t percent : parse_counts(list, "--depths", 0)) {
    if (percent > 100) throw input_error("--depths " + list + ": expected percents, 0 to 100");
    out.push_back(percent / 100.0);
  }
  return out;
}

}  // namespace

void add_task_flags(CLI::App& app, TaskFlags& f) {
  app.add_option("--key-tokens", f.key_tokens,
                 "Tokens of a key: N or N-M (kv_retrieval 4-8, mqar 1)");
  app.add_option("--value-tokens", f.value_tokens,
                 "Tokens of a value: N or N-M (kv_retrieval 4-8, mqar 1)");
  app.add_option(
      "--pairs", f.pairs,
      "Keys, words, facts or tools: N or N-M (kv_retrieval, uuid_retrieval: as many as fit; "
      "mqar, facts 8; multi-needles 4; common_words 10; multi_turn, tool_call 3)");
  app.add_option(
      "--queries", f.queries,
      "Keys asked for: N or N-M (kv_retrieval 1; mqar, needle_multi_query: all; ids: 8)");
  app.add_option("--hops", f.hops, "Names between value and question (variable_tracking 2)");
  app.add_option("--chains", f.chains,
                 "Chains, one is asked for (variable_tracking, chunk_chain 2)")
      ->check(CLI::Range(1, 32));
  app.add_option(
      "--depths", f.depths,
      "Of the needle, in percent of the text, one sample after the other: 0,25,50,75,100 "
      "(anywhere)");
  app.add_option("--n-chunks", f.chunks, "Chunks of the context (chunk_chain, chunk_border 8)")
      ->check(CLI::Range(2, 64));
}

TaskOptions task_options(const TaskFlags& f) {
  TaskOptions options;
  options.key_tokens = parse_range(f.key_tokens, "--key-tokens");
  options.value_tokens = parse_range(f.value_tokens, "--value-tokens");
  options.pairs = parse_range(f.pairs, "--pairs");
  options.queries = parse_range(f.queries, "--queries");
  options.hops = parse_range(f.hops, "--hops");
  options.depths = parse_depths(f.depths);
  options.chains = f.chains;
  options.chunks = f.chunks;
  return options;
}

std::vector<Task> parse_tasks(const std::string& list, const std::string& flag) {
  if (list == "all") return question_tasks();
  std::vector<Task> tasks;
  for (const std::string& part : split(list, ',')) tasks.push_back(task_by_name(part, flag));
  return tasks;
}

std::vector<MixPart> parse_mix(const std::string& list, const std::string& flag) {
  std::vector<MixPart> mix;
  for (const std::string& part : split(list, ',')) {
    const size_t sign = part.find('=');
    MixPart made{task_by_name(part.substr(0, sign), flag), 1};
    if (sign != part.npos && !read_number(part.substr(sign + 1), made.weight))
      throw input_error(flag + " " + part + ": expected task=weight, as repeat=3");
    mix.push_back(made);
  }
  return mix;
}

}  // namespace kvasir::tool
