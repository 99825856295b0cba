// Byte-level BPE (tokenizer.ggml.model = "gpt2"): text is cut into pieces by the pre-tokenizer,
// bytes of a piece are merged in the order of the merge list.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/tokenizer/pretokenizer.h"
#include "core/model/tokenizer/tokenizer.h"

namespace kvasir {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(const GgufFile& file);
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string piece(TokenId id, bool render_special) const override;

 private:
  // A symbol is a token id, or vocab_size_ + i for the i-th text that only serves to be merged.
  using Symbol = uint32_t;
  struct Merge {
    uint32_t rank;
    Symbol result;
  };
  struct Scratch;

  BpeTokenizer(const GgufFile& file, std::unique_ptr<Pretokenizer> pretokenizer);
  void read_merges(const GgufFile& file);
  Symbol intern(const std::string& text, std::unordered_map<std::string, Symbol>& extra);
  void prepare_replacement();
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  void add_pair(size_t left, size_t right, Scratch& scratch) const;
  void emit(Symbol symbol, std::vector<TokenId>& out) const;

  std::unique_ptr<Pretokenizer> pretokenizer_;
  std::array<Symbol, 256> byte_symbols_;
  std::unordered_map<uint64_t, Merge> merges_;  // left << 32 | right
  std::vector<std::string> extra_bytes_;        // what the symbols from vocab_size_ on stand for
  std::vector<TokenId> replacement_;            // for a byte without a token
};

}  // namespace kvasir
