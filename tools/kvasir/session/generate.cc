// See generate.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/generate.h"

#include <utility>

#include "core/error.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {
namespace {

// Bytes at the end of `text` that begin a UTF-8 character without finishing it.
size_t unfinished_bytes(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // continuation
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::push(const std::string& bytes) {
  pending_ += bytes;
  const size_t keep = unfinished_bytes(pending_);
  std::string out = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, pending_.size() - keep);
  return out;
}

std::string Utf8Stream::flush() { return std::exchange(pending_, {}); }

const char* name(Generation::End end) {
  switch (end) {
    case Generation::End::kEndOfText:
      return "stop";
    case Generation::End::kContext:
      return "context";
    case Generation::End::kInterrupted:
      return "interrupted";
    default:
      return "length";
  }
}

namespace {

// Runs steps until the request has ended. Cancels it when stop() returns true between two steps.
// Rethrows its error.
RequestStatus finish(Scheduler& scheduler, Request request, const std::function<bool()>& stop) {
  RequestStatus ended;
  bool has_ended = false;
  request.keep = true;
  request.on_end = [&](const RequestStatus& status) {
    ended = status;
    has_ended = true;
  };
  const RequestId id = scheduler.submit(std::move(request));
  while (!has_ended) {
    if (stop && stop()) scheduler.cancel(id);
    if (!has_ended && !scheduler.step())
      throw Error(ErrorKind::kInternal, "the scheduler has nothing to do, but a request is left");
  }
  if (ended.error) std::rethrow_exception(ended.error);
  return ended;
}

}  // namespace

PromptRead read_prompt(Scheduler& scheduler, SequenceId seq, std::vector<TokenId> tokens,
                       std::vector<float>& logits, const char* label,
                       const std::function<bool()>& stop) {
  ProgressBar bar(label);
  Request request;
  request.seq = seq;
  request.prompt = std::move(tokens);
  request.on_progress = [&](uint32_t done, uint32_t total) { bar.update(done, total); };
  request.on_prompt_end = [&](std::span<const float> last) {
    logits.assign(last.begin(), last.end());
  };
  const RequestStatus status = finish(scheduler, std::move(request), stop);
  return {status.seq, status.prompt_done};
}

Generation generate(Scheduler& scheduler, Engine& engine, SequenceId seq,
                    const Tokenizer& tokenizer, const std::vector<float>& logits, Sampler& sampler,
                    const GenerateOptions& options, uint32_t max_context, RunFigures& figures) {
  Generation out;
  Utf8Stream stream;
  const auto emit = [&](const std::string& text) {
    out.text += text;
    if (options.on_text && !text.empty()) options.on_text(text);
  };
  const auto end = [&](Generation::End why) {
    out.end = why;
    return std::nullopt;
  };
  Request request;
  request.seq = seq;
  request.logits = logits;
  request.max_new_tokens = options.n_predict;
  request.next = [&](std::span<const float> last) -> std::optional<TokenId> {
    if (options.n_predict == 0) return std::nullopt;
    if (options.stop && options.stop()) return end(Generation::End::kInterrupted);
    const TokenId token = sampler.sample(last);
    sampler.accept(token);
    if (!options.ignore_eos && tokenizer.is_end_of_generation(token))
      return end(Generation::End::kEndOfText);
    out.tokens.push_back(token);
    // A SentencePiece token begins with its leading space, which the start of a text does not have.
    const bool starts_text = out.tokens.size() == 1 && engine.tokens(seq).size() == 1 &&
                             engine.tokens(seq)[0] == tokenizer.bos();
    emit(stream.push(starts_text ? tokenizer.decode({&token, 1}) : tokenizer.piece(token)));
    if (out.tokens.size() == options.n_predict) return std::nullopt;
    if (engine.kv_len(seq) >= max_context) return end(Generation::End::kContext);
    return token;
  };
  const RequestStatus status = finish(scheduler, std::move(request), {});
  emit(stream.flush());
  figures.decode_ms += static_cast<double>(status.decode_nanos) / 1e6;
  figures.generated_tokens += static_cast<uint32_t>(out.tokens.size());
  return out;
}

}  // namespace kvasir::tool
