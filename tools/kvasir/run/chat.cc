// kvasir chat: questions about a document, or chunks, that are prefilled once; the cache stays
// between turns.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <optional>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/line_input.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/run/conversation.h"
#include "tools/kvasir/session/blend_arm.h"
#include "tools/kvasir/session/generate.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {
namespace {

// The template of --chat-template, else the model's. A model may have none.
std::optional<ChatTemplate> family_of(const GgufFile& file, const std::string& wanted) {
  const std::string known = join(chat_template_names(), ", ");
  if (!wanted.empty()) {
    const auto family = chat_template_by_name(wanted);
    if (!family) throw input_error("--chat-template " + wanted + ": known ones are " + known);
    return family;
  }
  const auto jinja = file.get<std::string_view>("tokenizer.chat_template");
  if (!jinja) {
    std::fprintf(stderr,
                 "kvasir: note: the model has no chat template: your lines are continued as plain "
                 "text (--chat-template sets one: %s)\n",
                 known.c_str());
    return std::nullopt;
  }
  const auto family = recognise_chat_template(*jinja);
  if (!family)
    throw input_error(file.path() + ": the chat template '" + std::string(jinja->substr(0, 60)) +
                      "…' is none of those known; choose one with --chat-template: " + known);
  return family;
}

// What the model's own template says first when nobody says anything: models are trained behind it.
std::string default_system(const GgufFile& file, const std::string& wanted) {
  const auto jinja = file.get<std::string_view>("tokenizer.chat_template");
  return jinja && wanted.empty() ? default_system_message(*jinja) : "";
}

struct ChatOptions {
  PromptOptions prompt;
  std::optional<std::string> system;  // "": none, not the template's own either
};

class Chat {
 public:
  Chat(Session& session, const Options& options, const ChatOptions& chat)
      : session_(session),
        tokenizer_(session.tokenizer()),
        options_(chat.prompt),
        seed_(options.seed),
        conversation_(family_of(session.file(), chat.prompt.chat_template)),
        sampler_(with_seed(chat.prompt.sampler, options.seed)) {
    if (!chat.prompt.file.empty()) document_ = read_file(chat.prompt.file, "-f");
    if (chat.system && !chat.system->empty())
      document_ = *chat.system + (document_.empty() ? "" : "\n\n" + document_);
    if (document_.empty() && !chat.system)
      document_ = default_system(session.file(), chat.prompt.chat_template);
    if (options_.chunks.empty())
      prefix_ = encode(document_.empty() ? "" : conversation_.system(document_), true);
    else
      take_chunks();
    const auto n = static_cast<uint32_t>(prefix_.size());
    context_ = session.context_or(n + kConversationTokens);
    if (n >= context_)
      throw input_error("the document is " + std::to_string(n) + " tokens, but " +
                        session.context_source() + " gives " + std::to_string(context_) +
                        ": raise that or shorten it");
    if (context_ > session.shape().max_context)
      std::fprintf(stderr, "kvasir: warning: %u tokens of context, the model was made for %u\n",
                   context_, session.shape().max_context);
    logits_.resize(session.shape().vocab_size);
  }

  void run();

 private:
  static constexpr uint32_t kConversationTokens = 4096;  // space for it when -c is not given

  static SamplerOptions with_seed(SamplerOptions sampler, uint64_t seed) {
    sampler.seed = seed;
    return sampler;
  }
  std::vector<TokenId> encode(const std::string& text, bool is_first) const;
  void take_chunks();
  bool reuses() const { return !options_.chunks.empty() && blend_.mode != BlendMode::kFull; }
  void load();
  void blend();
  uint32_t prefill(const std::vector<TokenId>& tokens, const char* label);
  void open();
  void reset();
  void turn(const std::string& line);
  bool ask(const std::string& line, RunFigures& figures);
  void report(const RunFigures& figures, const Generation& answer, uint32_t cached) const;

  Session& session_;
  const Tokenizer& tokenizer_;
  const PromptOptions& options_;
  uint64_t seed_;
  Conversation conversation_;
  Sampler sampler_;
  std::string document_;
  BlendConfig blend_;                   // of --chunks, as the next three
  std::vector<TokenId> lead_, behind_;  // what stands before chunks and behind them
  std::vector<std::vector<TokenId>> chunks_;
  std::optional<Blender> blender_;
  std::vector<TokenId> prefix_;   // BOS and document, at the start of every conversation
  std::vector<TokenId> pending_;  // generated, not in the cache yet
  uint32_t context_ = 0;
  Engine* engine_ = nullptr;
  std::optional<Scheduler> scheduler_;
  SequenceId seq_ = 0;
  std::vector<float> logits_;
};

// The conversation has a mark where the chunks are: each of them is encoded alone.
void Chat::take_chunks() {
  const std::string mark = "<chunks of kvasir chat>";
  const std::string text =
      conversation_.system(document_.empty() ? mark : document_ + "\n\n" + mark);
  const size_t at = text.find(mark);
  if (at == text.npos)
    throw input_error(
        "--chunks: the chat template puts the system message into the first question, and chunks "
        "stand before it: give another one with --chat-template");
  const std::string behind = text.substr(at + mark.size());
  lead_ = encode(text.substr(0, at), true);
  behind_ = encode(behind.empty() ? "\n\n" : behind, false);
  prefix_ = lead_;
  for (const std::string& path : options_.chunks) {
    chunks_.push_back(chunk_tokens(tokenizer_, read_file(path, "--chunks"), "--chunks " + path));
    prefix_.insert(prefix_.end(), chunks_.back().begin(), chunks_.back().end());
  }
  prefix_.insert(prefix_.end(), behind_.begin(), behind_.end());
  blend_ = options_.blend.empty()
               ? session_.strategy().blend
               : parse_blend_arm(options_.blend, session_.strategy().blend, "--blend").config;
}

// A blend takes all its chunks through one step.
void Chat::load() {
  if (reuses()) session_.take_steps_of(static_cast<uint32_t>(prefix_.size()));
  engine_ = &session_.load(context_);
  scheduler_.emplace(*engine_, SchedulerOptions{.memory_bytes = session_.sequence_memory()});
  if (!reuses()) return;
  check_blend_memory(session_, *engine_, context_, blend_.mode == BlendMode::kOracle);
  blender_.emplace(*engine_, session_.shape(), 0, chunk_bos(tokenizer_, blend_));
}

void Chat::blend() {
  BlendPrompt prompt{lead_, {}, behind_};
  for (const auto& chunk : chunks_) {
    stop_if_interrupted();
    prompt.chunks.push_back(blender_->chunks().add(chunk));
  }
  const Blended blended = blender_->blend(prompt, blend_, seed_, logits_, stop_if_interrupted);
  seq_ = blended.seq;
  std::fputs(to_text(blended.report).c_str(), stderr);
}

// Only the first piece gets a BOS.
std::vector<TokenId> Chat::encode(const std::string& text, bool is_first) const {
  if (text.empty() && is_first && tokenizer_.add_bos()) return {tokenizer_.bos()};
  if (text.empty()) return {};
  return tokenizer_.encode(text, {.add_bos = is_first, .parse_special = true});
}

// Returns how many tokens were read: all, or fewer after Ctrl-C.
uint32_t Chat::prefill(const std::vector<TokenId>& tokens, const char* label) {
  return read_prompt(*scheduler_, seq_, tokens, logits_, label, is_interrupted).n_tokens;
}

void Chat::open() {
  if (reuses()) return blend();
  seq_ = engine_->open();
  if (prefix_.empty()) return;
  const uint32_t restored = engine_->restore(seq_, prefix_);
  const std::vector<TokenId> left(prefix_.begin() + restored, prefix_.end());
  if (prefill(left, "reading the document") < left.size())
    throw Interrupted("interrupted while the document was read");
}

// Forgets the questions and answers. A strategy that evicted tokens cannot restore them: then the
// document is read again.
void Chat::reset() {
  conversation_.reset();
  pending_.clear();
  try {
    engine_->truncate(seq_, static_cast<uint32_t>(prefix_.size()));
  } catch (const Error&) {
    scheduler_->close(seq_);
    open();
  }
}

// Prefills what the question adds. Returns false when Ctrl-C interrupted it or the context has no
// space for it: the conversation is then as before the question.
bool Chat::ask(const std::string& line, RunFigures& figures) {
  std::vector<TokenId> tokens = pending_;
  const uint32_t cached = engine_->kv_len(seq_);
  const auto added = encode(conversation_.question(line), cached == 0);
  tokens.insert(tokens.end(), added.begin(), added.end());
  if (cached + tokens.size() >= context_) {
    conversation_.undo_question();
    std::fprintf(
        stderr,
        "kvasir: the context is full (%u of %u tokens, the question needs %zu): /reset, or "
        "start with a larger -c\n",
        cached, context_, tokens.size());
    return false;
  }
  if (tokens.empty()) {
    conversation_.undo_question();
    return false;
  }
  const uint64_t nanos = engine_->prefill_engagement().total_nanos;
  const uint32_t done = prefill(tokens, "prefill");
  figures.prefill_ms = static_cast<double>(engine_->prefill_engagement().total_nanos - nanos) / 1e6;
  figures.prompt_tokens = done;
  if (done < tokens.size()) {
    conversation_.undo_question();
    engine_->truncate(seq_, cached);
    return false;
  }
  pending_.clear();
  for (const TokenId token : added) sampler_.accept(token);
  return true;
}

void Chat::report(const RunFigures& figures, const Generation& answer, uint32_t cached) const {
  std::fprintf(stderr,
               "[%u tokens kept in the cache, %u prefilled in %.0f ms; %u generated at %.1f "
               "tokens/s; %s]\n",
               cached, figures.prompt_tokens, figures.prefill_ms, figures.generated_tokens,
               figures.decode_ms > 0 ? figures.generated_tokens * 1e3 / figures.decode_ms : 0.0,
               name(answer.end));
}

void Chat::turn(const std::string& line) {
  RunFigures figures;
  const uint32_t cached = engine_->kv_len(seq_);
  if (!ask(line, figures)) return;
  GenerateOptions generation;
  generation.n_predict = options_.n_predict;
  generation.ignore_eos = options_.ignore_eos;
  generation.stop = is_interrupted;
  generation.on_text = print_text_now;
  const uint32_t begin = engine_->kv_len(seq_);
  const Generation answer = generate(*scheduler_, *engine_, seq_, tokenizer_, logits_, sampler_,
                                     generation, context_, figures);
  print_text_now("\n");
  const uint32_t kept = engine_->kv_len(seq_) - begin;
  pending_.assign(answer.tokens.begin() + kept, answer.tokens.end());
  conversation_.answer(answer.text);
  report(figures, answer, cached);
}

void Chat::run() {
  load();
  open();
  const bool is_terminal = isatty(STDIN_FILENO);
  if (is_terminal)
    std::fprintf(stderr,
                 "%zu tokens read, space for %zu more. /reset forgets the conversation, "
                 "/exit or Ctrl-D ends it, Ctrl-C stops an answer.\n",
                 prefix_.size(), context_ - prefix_.size());
  LineInput input;
  for (std::string line;;) {
    input.forget_interrupts();
    if (is_terminal) std::fputs("> ", stderr);
    const LineInput::Result result = input.read(line);
    if (result == LineInput::Result::kEnd) break;
    if (result == LineInput::Result::kInterrupted) {
      std::fputs("\n(Ctrl-C again, /exit or Ctrl-D ends the conversation)\n", stderr);
      continue;
    }
    forget_interrupt();
    if (line == "/exit") break;
    if (line == "/reset") {
      reset();
    } else if (line.starts_with('/')) {
      std::fprintf(stderr, "%s: unknown; there are /reset and /exit\n", line.c_str());
    } else if (!line.empty()) {
      turn(line);
    }
    forget_interrupt();  // it ended the answer, not the conversation
  }
  if (is_terminal) std::fputs("\n", stderr);
}

void chat(const Options& options, const ChatOptions& o) {
  if (options.json) throw input_error("chat talks to a person and has no --json; see kvasir run");
  if (!o.prompt.chunks.empty() && !o.prompt.file.empty())
    throw input_error("-f and --chunks: give one of them");
  if (o.prompt.chunks.empty() && !o.prompt.blend.empty())
    throw input_error("--blend says how chunks are reused: give --chunks FILE...");
  Session session(options);
  Chat(session, options, o).run();
}

}  // namespace

void add_chat(CLI::App& app) {
  auto* c = app.add_subcommand("chat", "Questions about a document that is read once");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ChatOptions>();
  o->prompt.n_predict = 512;
  add_model_flags(*c, *options);
  add_strategy_flags(*c, *options);
  add_sampler_flags(*c, o->prompt);
  c->add_option("-f,--file", o->prompt.file, "Document to talk about");
  c->add_option("--chunks", o->prompt.chunks,
                "Texts to talk about, in this order; each is read alone and reused");
  c->add_option(
      "--blend", o->prompt.blend,
      std::string("How chunks are reused ([blend] of the strategy; 0.15): ") + kBlendArmHelp);
  c->add_option(
      "--sys,--system-prompt", o->system,
      "Instruction put before the document (default, without a document: the template's)");
  c->add_option("--chat-template", o->prompt.chat_template,
                "chatml, llama2, llama3, internlm2, mistral (default: the model's)");
  c->callback([=] { chat(*options, *o); });
}

}  // namespace kvasir::tool
