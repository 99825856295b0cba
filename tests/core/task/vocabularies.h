// Vocabularies the task tests run over: one made here, always there, and the shared real ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir::test {

// Byte-level BPE, digits single, no BOS unless asked for.
std::unique_ptr<Tokenizer> small_vocabulary(bool add_bos = false);

struct NamedTokenizer {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};
// gpt-2, qwen2, deepseek, two SentencePiece ones; empty where the shared data is absent.
std::vector<NamedTokenizer> real_vocabularies();
// SmolLM2's and Gemma's, each where its model is present.
std::vector<NamedTokenizer> trained_vocabularies();

}  // namespace kvasir::test
