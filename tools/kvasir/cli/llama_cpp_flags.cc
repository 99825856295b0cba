// See llama_cpp_flags.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/llama_cpp_flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace kvasir::tool {
namespace {

struct NotYet {
  const char* flag;
  bool takes_value;
  const char* why;
};
constexpr NotYet kNotYet[] = {
    {"--fa,--flash-attn", true, "attention is chosen in the strategy ([attention])"},
    {"--tb,--threads-batch", true, "prefill uses the threads of -t"},
    {"-b,--batch-size", true, "use --set cache.chunk_size=N"},
    {"--ub,--ubatch-size", true, "use --set cache.chunk_size=N"},
    {"--np,--parallel", true, "one sequence is run at a time"},
    {"--nkvo,--no-kv-offload", false, "the cache is in main memory already"},
    {"--no-mmap", false, "weights are converted at load"},
    {"--mlock", false, "weights are not locked"},
    {"--sm,--split-mode", true, "one GPU is used, the first"},
    {"--ts,--tensor-split", true, "one GPU is used, the first"},
    {"--mg,--main-gpu", true, "one GPU is used, the first"},
    {"--grammar", true, "answers are not constrained"},
    {"--lora", true, "adapters are not applied"},
    {"--rope-scaling", true, "the model file's own scaling is used"},
    {"--rope-freq-base", true, "the model file's own base is used"},
    {"--rope-freq-scale", true, "the model file's own scaling is used"},
    {"--jinja", false, "known chat templates are recognised, see --chat-template"},
    {"--override-kv", true, "the model file's own values are used"},
    {"--keep", true, "what stays is the strategy's: sink_tokens and window_tokens"},
    {"--presence-penalty", true, "see --repeat-penalty"},
    {"--frequency-penalty", true, "see --repeat-penalty"},
    {"--typical,--typical-p", true, "see --top-k, --top-p and --min-p"},
    {"--mirostat", true, "see --top-k, --top-p and --min-p"},
    {"--samplers", true, "the order is fixed: penalty, top-k, top-p, min-p, temperature"},
    {"--md,--model-draft", true, "nothing is drafted"},
    {"--dev,--device", true, "the first GPU is used, see -ngl and CUDA_VISIBLE_DEVICES"},
    {"--cnv,--conversation", false, "kvasir chat converses"},
    {"--no-cnv,--no-conversation", false, "kvasir run does not converse"},
    {"--st,--single-turn", false, "kvasir run answers once"},
    {"--no-warmup", false, "nothing is warmed up"},
    {"--no-display-prompt", false, "the prompt is not printed"},
    {"--color", false, "the answer is not coloured"},
    {"-e,--escape", false, "a prompt is taken as it is"},
};

}  // namespace

void add_not_yet_flags(CLI::App& app) {
  for (const NotYet& flag : kNotYet) {
    const std::string name = flag.flag, why = flag.why;
    const auto say = [name, why] {
      std::fprintf(
          stderr, "kvasir: %s: not yet: %s\n",
          name.substr(name.rfind(',') == std::string::npos ? 0 : name.rfind(',') + 1).c_str(),
          why.c_str());
    };
    // Hidden from --help: they do nothing.
    if (flag.takes_value) {
      app.add_option_function<std::string>(
             name, [say](const std::string&) { say(); }, "")
          ->group("");
    } else {
      app.add_flag_function(
             name, [say](int64_t) { say(); }, "")
          ->group("");
    }
  }
}

std::vector<std::string> normalise_arguments(int argc, char** argv) {
  static constexpr const char* kLong[] = {"-ngl", "-fa",  "-tb",  "-ub",     "-np",  "-nkvo",
                                          "-sm",  "-ts",  "-mg",  "-ctk",    "-ctv", "-sys",
                                          "-md",  "-dev", "-cnv", "-no-cnv", "-st"};
  std::vector<std::string> out;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 takes them from last to first
    const std::string argument = argv[i], flag = argument.substr(0, argument.find('='));
    const bool known = std::find(std::begin(kLong), std::end(kLong), flag) != std::end(kLong);
    // -fa once took no value: then another flag follows it.
    const bool bare = flag == "-fa" && argument == flag && (i + 1 == argc || argv[i + 1][0] == '-');
    if (bare) out.push_back("on");
    out.push_back(known ? "-" + argument : argument);
  }
  return out;
}

}  // namespace kvasir::tool
