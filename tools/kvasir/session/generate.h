// Prompt in, text out: the requests that run and chat make.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"
#include "core/runtime/engine.h"
#include "core/serving/sampler.h"
#include "core/serving/scheduler.h"
#include "tools/kvasir/session/run_report.h"

namespace kvasir::tool {

// Holds back the bytes of an unfinished UTF-8 character, so that a terminal sees whole ones.
class Utf8Stream {
 public:
  std::string push(const std::string& bytes);
  std::string flush();

 private:
  std::string pending_;
};

// The sequence of a prompt, still open, and how many tokens were read.
struct PromptRead {
  SequenceId seq = 0;
  uint32_t n_tokens = 0;  // fewer than given when stop() returned true
};
// Appends the tokens to `seq`. Writes logits [vocab], those of the last token. Throws the error
// that ended the request.
PromptRead read_prompt(Scheduler& scheduler, SequenceId seq, std::vector<TokenId> tokens,
                       std::vector<float>& logits, const char* label,
                       const std::function<bool()>& stop);

struct Generation {
  std::string text;
  std::vector<TokenId> tokens;
  enum class End { kEndOfText, kLength, kContext, kInterrupted } end = End::kLength;
};
const char* name(Generation::End end);  // "stop", "length", "context", "interrupted"

// Generates from `logits`, those of the last prompt token, until there are n_predict tokens, the
// model ends the text, the context is full, or stop() returns true. on_text gets each text as it
// comes, in whole characters.
struct GenerateOptions {
  uint32_t n_predict = 128;
  bool ignore_eos = false;
  SamplerOptions sampler;
  std::function<void(const std::string&)> on_text;
  std::function<bool()> stop;
};
Generation generate(Scheduler& scheduler, Engine& engine, SequenceId seq,
                    const Tokenizer& tokenizer, const std::vector<float>& logits, Sampler& sampler,
                    const GenerateOptions& options, uint32_t max_context, RunFigures& figures);

}  // namespace kvasir::tool
