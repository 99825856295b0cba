// Text to token ids and back, from the vocabulary a GGUF carries: SentencePiece BPE ("llama") and
// byte-level BPE ("gpt2") with the pre-tokenizer the file names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/tokenizer/special_tokens.h"

namespace kvasir {

using TokenId = int32_t;
inline constexpr TokenId kNoToken = -1;

class Tokenizer {
 public:
  // Error(kInput) naming the file and what is missing or unsupported (model, pre-tokenizer).
  static std::unique_ptr<Tokenizer> from_gguf(const GgufFile& file);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  struct EncodeOptions {
    bool add_bos = true;         // only when the vocabulary asks for a BOS at all
    bool parse_special = false;  // "<|im_end|>" in the text becomes the token (chat templates)
  };
  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;
  // Bytes of the tokens in order. Control tokens yield nothing unless `render_special`. The one
  // space that a SentencePiece vocabulary puts in front of a text is taken off again.
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
  enum class TokenType : uint8_t {  // tokenizer.ggml.token_type
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };

  // Reads vocabulary, types and special ids; `defaults` hold where the file is silent.
  struct Defaults {
    TokenId bos = kNoToken, eos = kNoToken, unk = kNoToken;
    bool add_bos = false;
  };
  Tokenizer(const GgufFile& file, const Defaults& defaults);

  // A stretch of plain text, or (id != kNoToken) a token found whole in it.
  struct Fragment {
    std::string_view text;
    TokenId id;
  };
  std::vector<Fragment> fragments(std::string_view text, bool parse_special) const;
  TokenId find_normal(std::string_view piece) const;  // as find(), ordinary tokens only
  const std::string& text_of(TokenId id) const;       // Error when out of range
  static int byte_value(std::string_view text);       // 31 of "<0x1F>", -1 of other texts
  // What a token that is not ordinary text adds to the output; nullopt for kNormal.
  std::optional<std::string> special_piece(TokenId id, bool render_special) const;

  uint32_t vocab_size_ = 0;
  TokenId bos_ = kNoToken, eos_ = kNoToken, unk_ = kNoToken;
  bool add_bos_ = false;
  bool strip_leading_space_ = false;  // decode() drops the space that encode() put in front
  std::string model_name_, pre_name_;
  std::vector<std::string> texts_;  // vocabulary text per id
  std::vector<TokenType> types_;
  std::vector<TokenId> end_of_generation_;

 private:
  void read_types(const GgufFile& file);
  void index_texts();
  TokenId read_id(const GgufFile& file, const char* key, TokenId fallback) const;
  void collect_end_of_generation(const GgufFile& file);

  std::unordered_map<std::string_view, TokenId> index_;  // views into texts_
  SpecialTokens special_;
};

}  // namespace kvasir
