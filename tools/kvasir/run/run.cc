// kvasir run: a prompt through a model under a strategy; streams the answer, then proves its work.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>

#include "core/model/tokenizer/chat_template.h"
#include "core/platform/memory.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/generate.h"
#include "tools/kvasir/session/prompt_cache.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {
namespace {

std::atomic<bool> interrupted{false};

std::string prompt_text(const PromptOptions& prompt) {
  if (prompt.prompt && !prompt.file.empty()) throw input_error("-p and -f: give one of them");
  if (!prompt.file.empty()) return read_file(prompt.file, "-f");
  if (!prompt.prompt) throw input_error("no prompt: give -p TEXT or -f FILE");
  return *prompt.prompt;
}

// --chat-template wraps the prompt as one user message.
std::vector<TokenId> prompt_tokens(const Tokenizer& tokenizer, const PromptOptions& prompt) {
  const std::string text = prompt_text(prompt);
  if (prompt.chat_template.empty()) {
    auto tokens = tokenizer.encode(text, {});  // of an empty text: a BOS, where there is one
    if (tokens.empty()) throw input_error("the prompt is empty: give -p TEXT or -f FILE");
    return tokens;
  }
  const auto family = chat_template_by_name(prompt.chat_template);
  if (!family) {
    std::string names;
    for (const std::string& known : chat_template_names()) names += " " + known;
    throw input_error("--chat-template " + prompt.chat_template + ": known ones are" + names);
  }
  const ChatMessage message{"user", text};
  return tokenizer.encode(apply_chat_template(*family, {&message, 1}, true),
                          {.add_bos = true, .parse_special = true});
}

// The answer is worth more than the file.
void keep_prompt(Engine& engine, SequenceId seq, std::span<const float> logits,
                 const std::string& path) {
  try {
    save_prompt(engine, seq, logits, path);
  } catch (const Error& e) {
    std::fprintf(stderr, "kvasir: warning: %s\n", e.what());
  }
}

void run(const Options& options, const PromptOptions& prompt) {
  Session session(options);
  const Tokenizer& tokenizer = session.tokenizer();
  const std::vector<TokenId> tokens = prompt_tokens(tokenizer, prompt);
  const auto needed = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{tokens.size()} + prompt.n_predict, INT32_MAX));
  const uint32_t context = session.context_or(needed);
  if (tokens.size() > context)
    throw input_error("the prompt is " + std::to_string(tokens.size()) + " tokens, but " +
                      session.context_source() + " gives " + std::to_string(context) +
                      ": raise it or shorten the prompt");
  Engine& engine = session.load(context);
  if (context > session.shape().max_context)
    std::fprintf(stderr, "kvasir: warning: %u tokens of context, the model was made for %u\n",
                 context, session.shape().max_context);
  std::vector<float> logits(session.shape().vocab_size);
  const CachedPrompt cached = prompt.cache_file.empty()
                                  ? CachedPrompt{engine.open(), 0}
                                  : restore_prompt(engine, prompt.cache_file, tokens, logits);
  const SequenceId seq = cached.seq;
  const bool is_kept =
      !prompt.cache_file.empty() && !prompt.cache_readonly && cached.n_tokens < tokens.size();
  if (is_kept) check_savable(engine, seq, prompt.cache_file);
  RunFigures figures;
  figures.prompt_tokens = static_cast<uint32_t>(tokens.size());
  figures.cached_prompt_tokens = cached.n_tokens;
  figures.load_ms = session.load_ms();
  std::signal(SIGINT, [](int) {
    if (interrupted.exchange(true)) std::_Exit(130);
  });
  const auto is_stopped = [] { return interrupted.load(); };
  Scheduler scheduler(engine, {.memory_bytes = session.sequence_memory()});
  uint32_t done = cached.n_tokens;
  if (done < tokens.size())
    done += read_prompt(scheduler, seq, {tokens.begin() + done, tokens.end()}, logits, "prefill",
                        is_stopped)
                .n_tokens;
  if (is_kept && done == tokens.size()) keep_prompt(engine, seq, logits, prompt.cache_file);
  figures.prefill_ms = static_cast<double>(engine.prefill_engagement().total_nanos) / 1e6;
  figures.prompt_tokens = done;  // fewer when it was stopped
  SamplerOptions sampling = prompt.sampler;
  sampling.seed = options.seed;
  Sampler sampler(sampling);
  for (const TokenId token : tokens) sampler.accept(token);
  GenerateOptions generation;
  generation.n_predict = done == tokens.size() ? prompt.n_predict : 0;
  generation.ignore_eos = prompt.ignore_eos;
  generation.stop = is_stopped;
  if (!options.json)
    generation.on_text = [](const std::string& text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
  Generation answer =
      generate(scheduler, engine, seq, tokenizer, logits, sampler, generation, context, figures);
  if (done < tokens.size()) answer.end = Generation::End::kInterrupted;
  if (options.json) {
    auto report = to_json(engine, figures);
    report["model"] = options.model;
    report["context"] = context;
    report["compute"] = session.compute() == Compute::kBF16 ? "bf16" : "f32";
    report["deterministic"] = session.deterministic();
    report["threads"] = session.pool().n_workers();
    report["peak_resident_bytes"] = memory_info().peak_resident_bytes;
    report["planned_bytes"] = session.plan(context).total();
    report["finish_reason"] = name(answer.end);
    report["tokens"] = answer.tokens;
    report["text"] = answer.text;
    print_json(report);
  } else {
    std::printf("\n");
    std::fflush(stdout);
    std::fputs(to_text(engine, figures).c_str(), stderr);
    if (answer.end == Generation::End::kContext)
      std::fprintf(stderr,
                   "kvasir: the answer stops where the context of %u tokens is full: "
                   "raise -c\n",
                   context);
  }
  if (done < tokens.size())
    throw input_error("interrupted after " + std::to_string(done) + " of " +
                      std::to_string(tokens.size()) + " prompt tokens");
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command = app.add_subcommand("run", "Answer a prompt under a strategy");
  auto options = std::make_shared<Options>();
  auto prompt = std::make_shared<PromptOptions>();
  add_model_flags(*command, *options);
  add_strategy_flags(*command, *options);
  add_sampler_flags(*command, *prompt);
  auto* text = command->add_option("-p,--prompt", prompt->prompt, "Prompt text");
  auto* file = command->add_option("-f,--file", prompt->file, "Prompt from a file");
  auto* cache = command->add_option(
      "--prompt-cache", prompt->cache_file,
      "Start behind the prompt in this file, if it exists; keep the prompt there once it is read");
  command->add_flag("--prompt-cache-ro", prompt->cache_readonly, "Use that file, do not write it")
      ->needs(cache);
  command->add_option(
      "--chat-template", prompt->chat_template,
      "Wrap the prompt as a chat message: chatml, llama2, llama3, internlm2, mistral");
  command->callback([=] {
    if (text->count() + file->count() == 0) throw input_error("no prompt: give -p TEXT or -f FILE");
    run(*options, *prompt);
  });
}

}  // namespace kvasir::tool
