// SentencePiece BPE (tokenizer.ggml.model = "llama"): the pair whose union has the best score is
// merged first; what ends up outside the vocabulary becomes byte tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir {

class SpmTokenizer final : public Tokenizer {
 public:
  explicit SpmTokenizer(const GgufFile& file);
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string piece(TokenId id, bool render_special) const override;

 private:
  struct Scratch;
  void encode_text(std::string_view text, bool prefix, Scratch& scratch,
                   std::vector<TokenId>& out) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  void add_pair(size_t left, size_t right, Scratch& scratch) const;
  void emit(std::string_view symbol, std::vector<TokenId>& out) const;

  std::vector<float> scores_;
  std::array<TokenId, 256> byte_tokens_;
  size_t max_piece_bytes_ = 0;
  bool add_space_prefix_ = true;
  bool words_are_separate_ = true;  // no piece continues over the start of a word
};

}  // namespace kvasir
