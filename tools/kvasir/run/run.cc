// kvasir run: a prompt through a model under a strategy; prints the answer as it is
// generated, then the report of the run.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>

#include "core/error.h"
#include "core/model/tokenizer/chat_template.h"
#include "core/platform/memory.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/run/answer.h"
#include "tools/kvasir/session/generate.h"
#include "tools/kvasir/session/prompt_cache.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

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
    auto tokens = tokenizer.encode(text, {});  // an empty text gives a BOS, if the model has one
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

// The prompt as its parts: chunks, and what -p or -f asks behind them. Each part is encoded alone.
struct PromptParts {
  std::vector<TokenId> lead;  // BOS
  std::vector<std::vector<TokenId>> chunks;
  std::vector<TokenId> question;
};

PromptParts prompt_parts(const Tokenizer& tokenizer, const PromptOptions& o) {
  PromptParts parts;
  if (const auto bos = leading_bos(tokenizer)) parts.lead = {*bos};
  for (const std::string& path : o.chunks)
    parts.chunks.push_back(
        chunk_tokens(tokenizer, read_file(path, "--chunks"), "--chunks " + path));
  parts.question = chunk_tokens(tokenizer, prompt_text(o), "the question of -p or -f");
  return parts;
}

std::vector<TokenId> joined(const PromptParts& parts) {
  std::vector<TokenId> all = parts.lead;
  for (const auto& chunk : parts.chunks) all.insert(all.end(), chunk.begin(), chunk.end());
  all.insert(all.end(), parts.question.begin(), parts.question.end());
  return all;
}

// One prompt and its answer.
class PromptRun {
 public:
  PromptRun(Session& session, const Options& options, const PromptOptions& o)
      : session_(session),
        options_(options),
        o_(o),
        blend_(o.blend.empty()
                   ? session.strategy().blend
                   : parse_blend_arm(o.blend, session.strategy().blend, "--blend").config),
        parts_(o.chunks.empty() ? PromptParts{} : prompt_parts(session.tokenizer(), o)),
        tokens_(o.chunks.empty() ? prompt_tokens(session.tokenizer(), o) : joined(parts_)),
        context_(context()),
        engine_(load()) {
    if (context_ > session.shape().max_context)
      std::fprintf(stderr, "kvasir: warning: %u tokens of context, the model was made for %u\n",
                   context_, session.shape().max_context);
    logits_.resize(session.shape().vocab_size);
    figures_.load_ms = session.load_ms();
  }

  Answer run() {
    Answer out;
    const bool reuses = !o_.chunks.empty() && blend_.mode != BlendMode::kFull;
    if (reuses)
      out.blend = blend();
    else
      open();
    Scheduler scheduler(engine_, {.memory_bytes = session_.sequence_memory()});
    if (!reuses) read(scheduler);
    if (!o_.chunks.empty() && !reuses) out.blend = plain_report();
    out.generation = answer(scheduler);
    out.run = run_report(engine_, figures_);
    out.setup = session_.setup();
    out.context = context_;
    out.peak_resident_bytes = memory_info().peak_resident_bytes;
    out.planned_bytes = session_.planned_bytes();
    out.on_device = session_.placement();
    return out;
  }

  size_t n_tokens() const { return tokens_.size(); }
  // Throws why the prompt is not in --prompt-cache, although it was read.
  void check_kept() const {
    if (unkept_) std::rethrow_exception(unkept_);
  }

 private:
  uint32_t context() const;
  Engine& load();
  BlendReport blend();
  BlendReport plain_report() const;
  void open();
  void restore_stored();
  void read(Scheduler& scheduler);
  void keep();
  Generation answer(Scheduler& scheduler);

  Session& session_;
  const Options& options_;
  const PromptOptions& o_;
  BlendConfig blend_;  // of --chunks, as the next
  PromptParts parts_;
  std::vector<TokenId> tokens_;
  uint32_t context_;
  Engine& engine_;
  CachedPrompt cached_;
  bool is_kept_ = false;       // the prompt goes into --prompt-cache once it is read
  std::exception_ptr unkept_;  // why it could not
  std::vector<float> logits_;  // of its last token
  RunFigures figures_;
};

// -c, else the tokens of prompt and answer.
uint32_t PromptRun::context() const {
  const auto needed =
      static_cast<uint32_t>(std::min<uint64_t>(uint64_t{n_tokens()} + o_.n_predict, INT32_MAX));
  const uint32_t context = session_.context_or(needed);
  if (n_tokens() > context)
    throw input_error("the prompt is " + std::to_string(n_tokens()) + " tokens, but " +
                      session_.context_source() + " gives " + std::to_string(context) +
                      ": raise it or shorten the prompt");
  return context;
}

// A blend takes all its chunks through one step.
Engine& PromptRun::load() {
  if (o_.chunks.empty()) return session_.load(context_);
  session_.take_steps_of(static_cast<uint32_t>(n_tokens()));
  Engine& engine = session_.load(context_);
  if (blend_.mode != BlendMode::kFull)
    check_blend_memory(session_, engine, context_, blend_.mode == BlendMode::kOracle);
  return engine;
}

// Reads the chunks, each alone, then the prompt that reuses them: its time is that of the prompt.
BlendReport PromptRun::blend() {
  Blender blender(engine_, session_.shape(), 0, chunk_bos(session_.tokenizer(), blend_));
  BlendPrompt prompt{parts_.lead, {}, parts_.question};
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& chunk : parts_.chunks) {
    stop_if_interrupted();
    prompt.chunks.push_back(blender.chunks().add(chunk));
  }
  figures_.chunks_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const Blended blended =
      blender.blend(prompt, blend_, options_.seed, logits_, stop_if_interrupted);
  cached_.seq = blended.seq;
  figures_.prompt_tokens = static_cast<uint32_t>(n_tokens());
  const auto computed = static_cast<uint32_t>(
      std::lround(blended.report.recomputed_share() * blended.report.chunk_tokens));
  figures_.reused_prompt_tokens = blended.report.chunk_tokens - computed;
  figures_.prefill_ms = 1e3 * blended.report.seconds();
  return blended.report;
}

// Of mode full, whose chunks are a plain prompt.
BlendReport PromptRun::plain_report() const {
  BlendReport report;
  report.chunk_tokens =
      static_cast<uint32_t>(n_tokens() - parts_.lead.size() - parts_.question.size());
  report.recomputed.assign(session_.shape().n_layers, report.chunk_tokens);
  report.recompute_seconds = figures_.prefill_ms / 1e3;
  return report;
}

// Opens a sequence and restores what the file of --prompt-cache holds of the prompt.
void PromptRun::open() {
  if (!o_.cache_file.empty()) {
    cached_ = restore_prompt(engine_, o_.cache_file, tokens_, logits_);
  } else {
    cached_.seq = engine_.open();
    restore_stored();
  }
  is_kept_ = !o_.cache_file.empty() && !o_.cache_readonly && cached_.n_tokens < n_tokens();
  if (is_kept_) check_savable(engine_, cached_.seq, o_.cache_file);
  if (!o_.cache_file.empty()) figures_.cached_prompt_tokens = cached_.n_tokens;
}

// What the storage kept of earlier prompts.
void PromptRun::restore_stored() {
  const auto begin = std::chrono::steady_clock::now();
  cached_.n_tokens = figures_.restored_prompt_tokens = engine_.restore(cached_.seq, tokens_);
  figures_.restore_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Reads the rest of the prompt. Ctrl-C ends it early.
void PromptRun::read(Scheduler& scheduler) {
  uint32_t done = cached_.n_tokens;
  if (done < n_tokens())
    done += read_prompt(scheduler, cached_.seq, {tokens_.begin() + done, tokens_.end()}, logits_,
                        "prefill", is_interrupted)
                .n_tokens;
  if (is_kept_ && done == n_tokens()) keep();
  figures_.prefill_ms = static_cast<double>(engine_.prefill_engagement().total_nanos) / 1e6;
  figures_.prompt_tokens = done;
}

// The answer follows also when the file cannot be written; the command fails after it.
void PromptRun::keep() {
  try {
    save_prompt(engine_, cached_.seq, logits_, o_.cache_file);
  } catch (const Error&) {
    unkept_ = std::current_exception();
  }
}

// Generates nothing when the prompt was not read to its end.
Generation PromptRun::answer(Scheduler& scheduler) {
  const bool is_read = figures_.prompt_tokens == n_tokens();
  SamplerOptions sampling = o_.sampler;
  sampling.seed = options_.seed;
  Sampler sampler(sampling);
  for (const TokenId token : tokens_) sampler.accept(token);
  GenerateOptions generation;
  generation.n_predict = is_read ? o_.n_predict : 0;
  generation.ignore_eos = o_.ignore_eos;
  generation.stop = is_interrupted;
  if (!options_.json) generation.on_text = print_text_now;
  Generation made = generate(scheduler, engine_, cached_.seq, session_.tokenizer(), logits_,
                             sampler, generation, context_, figures_);
  if (!is_read) made.end = Generation::End::kInterrupted;
  return made;
}

void check_chunks(const Options& options, const PromptOptions& o) {
  if (o.chunks.empty() && !o.blend.empty())
    throw input_error("--blend says how chunks are reused: give --chunks FILE...");
  if (o.chunks.empty()) return;
  if (!o.chat_template.empty() || !o.cache_file.empty())
    throw input_error("--chunks does not go with --chat-template and --prompt-cache");
  if (!o.blend.empty()) parse_blend_arm(o.blend, resolve_strategy(options).blend, "--blend");
}

void run(const Options& options, const PromptOptions& o) {
  check_chunks(options, o);
  Session session(options);
  PromptRun run(session, options, o);
  const Answer answer = run.run();
  if (options.json) {
    print_json(to_json(answer));
  } else {
    print_text_now("\n");  // the answer itself was printed as it came
    std::fputs(to_text(answer).c_str(), stderr);
  }
  if (const uint32_t done = answer.run.figures.prompt_tokens; done < run.n_tokens())
    throw Interrupted("interrupted after " + std::to_string(done) + " of " +
                      std::to_string(run.n_tokens()) + " prompt tokens");
  run.check_kept();
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
  command->add_option("--chunks", prompt->chunks,
                      "Files that stand before the prompt, in this order; each is read alone and "
                      "reused, and every part is encoded alone");
  command->add_option(
      "--blend", prompt->blend,
      std::string("How chunks are reused ([blend] of the strategy; 0.15): ") + kBlendArmHelp);
  command->callback([=] {
    if (text->count() + file->count() == 0) throw input_error("no prompt: give -p TEXT or -f FILE");
    run(*options, *prompt);
  });
}

}  // namespace kvasir::tool
