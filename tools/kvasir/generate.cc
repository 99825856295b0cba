// Generation; see generate.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/generate.h"

#include <chrono>
#include <utility>

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

Generation generate(Engine& engine, SequenceId seq, const Tokenizer& tokenizer,
                    std::vector<float>& logits, Sampler& sampler, const GenerateOptions& options,
                    uint32_t max_context, RunFigures& figures) {
  Generation out;
  Utf8Stream stream;
  const auto emit = [&](const std::string& text) {
    out.text += text;
    if (options.on_text && !text.empty()) options.on_text(text);
  };
  while (out.tokens.size() < options.n_predict) {
    if (options.stop && options.stop()) {
      out.end = Generation::End::kInterrupted;
      break;
    }
    const TokenId token = sampler.sample(logits);
    sampler.accept(token);
    if (!options.ignore_eos && tokenizer.is_end_of_generation(token)) {
      out.end = Generation::End::kEndOfText;
      break;
    }
    out.tokens.push_back(token);
    // SentencePiece words carry their leading space; at the very start of a text it is not one.
    const bool starts_text = out.tokens.size() == 1 && engine.tokens(seq).size() == 1 &&
                             engine.tokens(seq)[0] == tokenizer.bos();
    emit(stream.push(starts_text ? tokenizer.decode({&token, 1}) : tokenizer.piece(token)));
    if (out.tokens.size() == options.n_predict) break;
    if (engine.kv_len(seq) >= max_context) {
      out.end = Generation::End::kContext;
      break;
    }
    const Engine::DecodeItem item{seq, token};
    const auto begin = std::chrono::steady_clock::now();
    engine.decode({&item, 1}, logits);
    figures.decode_ms +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  emit(stream.flush());
  figures.generated_tokens += static_cast<uint32_t>(out.tokens.size());
  return out;
}

}  // namespace kvasir::tool
