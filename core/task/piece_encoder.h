// Text to tokens by pieces that are remembered: filler prose is a few hundred words again and
// again, and a training job wants many thousand tokens a second from one core.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir {

// ids[i] stands for the bytes [ends[i-1], ends[i]) of the text; a BOS for none.
struct EncodedText {
  std::vector<TokenId> ids;
  std::vector<size_t> ends;
};

// Cuts before a space that follows something else, and after a line end. No tokenizer we know
// merges across these places in text of words, numbers and single spaces, so that the pieces'
// tokens are the text's tokens (tests/core/task compares them for each kind of vocabulary).
class PieceEncoder {
 public:
  explicit PieceEncoder(const Tokenizer& tokenizer);

  // BOS where the vocabulary wants one, unless told otherwise. Error(kInput) when the vocabulary
  // cannot write the text.
  EncodedText encode(std::string_view text, bool add_bos = true);
  // Any text, in parts that no token crosses: each is encoded as a whole.
  EncodedText encode_parts(const std::vector<std::string>& parts);
  // Tokens of a text in the middle of another.
  size_t count(std::string_view text);
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Piece {
    std::vector<TokenId> ids;
    std::vector<size_t> lengths;  // bytes per token
  };
  const Piece& piece(std::string_view text);
  Piece make_piece(std::string_view text, bool starts_text) const;
  EncodedText start(bool add_bos) const;
  static void append(const Piece& piece, EncodedText& out);

  const Tokenizer& tokenizer_;
  std::vector<TokenId> line_end_;  // what SentencePiece makes of "\n" at the start of a text
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, Piece, Hash, std::equal_to<>> known_;
};

}  // namespace kvasir
