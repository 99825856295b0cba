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

// What a prompt left behind: the sequence, open, and the tokens that were read.
struct PromptRead {
  SequenceId seq = 0;
  uint32_t n_tokens = 0;  // fewer than given when stop() was true between two pieces
};
// `seq` goes on with the tokens; logits [vocab] are those of the last one. Throws the error that
// ended it.
PromptRead read_prompt(Scheduler& scheduler, SequenceId seq, std::vector<TokenId> tokens,
                       std::vector<float>& logits, const char* label,
                       const std::function<bool()>& stop);

struct Generation {
  std::string text;
  std::vector<TokenId> tokens;
  enum class End { kEndOfText, kLength, kContext, kInterrupted } end = End::kLength;
};
const char* name(Generation::End end);  // "stop", "length", "context", "interrupted"

// Generates from `logits` (those of the last prompt token) until n_predict, an end token, a full
// context, or stop() is true. on_text gets whole characters as they come.
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
