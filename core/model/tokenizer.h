// Text to token ids and back, from the vocabulary a GGUF carries: SentencePiece BPE ("llama") and
// byte-level BPE ("gpt2") with the pre-tokenizer the file names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/gguf.h"

namespace kvasir {

using TokenId = int32_t;
inline constexpr TokenId kNoToken = -1;

class Tokenizer {
 public:
  // Error(kInput) naming the file and what is missing or unsupported (model, pre-tokenizer).
  static std::unique_ptr<Tokenizer> from_gguf(const GgufFile& file);
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_bos = true;         // only when the vocabulary asks for a BOS at all
    bool parse_special = false;  // "<|im_end|>" in the text becomes the token (chat templates)
  };
  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;
  // Bytes of the tokens in order. Control tokens yield nothing unless `render_special`.
  std::string decode(std::span<const TokenId> ids, bool render_special = false) const;
  // Bytes one token adds to running text: streaming output concatenates these (may be a part of a
  // UTF-8 character).
  virtual std::string piece(TokenId id, bool render_special = false) const = 0;

  uint32_t vocab_size() const { return vocab_size_; }
  TokenId bos() const { return bos_; }
  TokenId eos() const { return eos_; }
  TokenId unk() const { return unk_; }
  bool add_bos() const { return add_bos_; }     // whether the vocabulary wants a BOS by default
  bool is_end_of_generation(TokenId id) const;  // eos, eot, <|im_end|>, <|eot_id|> …
  TokenId find(std::string_view piece) const;   // exact vocabulary text; kNoToken when absent
  const std::string& model_name() const { return model_name_; }  // "llama" or "gpt2"
  const std::string& pre_name() const { return pre_name_; }      // "qwen2" …, empty for SPM

 protected:
  uint32_t vocab_size_ = 0;
  TokenId bos_ = kNoToken, eos_ = kNoToken, unk_ = kNoToken;
  bool add_bos_ = false;
  std::string model_name_, pre_name_;
  std::vector<std::string> texts_;  // vocabulary text per id
  std::vector<TokenId> end_of_generation_;
};

}  // namespace kvasir
