// What both tokenizers share: the vocabulary as read from the file, special tokens, decoding.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/model/tokenizer/tokenizer_bpe.h"
#include "core/model/tokenizer/tokenizer_spm.h"

namespace kvasir {
namespace {

constexpr uint64_t kNoneInFile = 0xFFFFFFFF;

// Control tokens that end an answer in the model families we know, whatever the file calls eos.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|EOT|>",
    "</s>",
    "<end_of_turn>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
};

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  const auto model = file.get<std::string_view>("tokenizer.ggml.model");
  if (!model) {
    throw input_error(file.path() +
                      ": no tokenizer.ggml.model, so no tokenizer; use a file that carries its "
                      "vocabulary");
  }
  if (*model == "llama") return std::make_unique<SpmTokenizer>(file);
  if (*model == "gpt2") return std::make_unique<BpeTokenizer>(file);
  throw input_error(file.path() + ": tokenizer.ggml.model '" + std::string(*model) +
                    "' is not supported; supported: llama (SentencePiece), gpt2 (byte-level BPE)");
}

Tokenizer::Tokenizer(const GgufFile& file, const Defaults& defaults) {
  const auto texts = file.get_array<std::string_view>("tokenizer.ggml.tokens");
  if (!texts || texts->empty()) {
    throw input_error(file.path() + ": tokenizer.ggml.tokens is missing or empty");
  }
  if (texts->size() > static_cast<size_t>(INT32_MAX)) {
    throw input_error(file.path() + ": tokenizer.ggml.tokens has more entries than ids exist");
  }
  texts_.assign(texts->begin(), texts->end());
  vocab_size_ = static_cast<uint32_t>(texts_.size());
  model_name_ = file.require<std::string_view>("tokenizer.ggml.model");
  bos_ = read_id(file, "tokenizer.ggml.bos_token_id", defaults.bos);
  eos_ = read_id(file, "tokenizer.ggml.eos_token_id", defaults.eos);
  unk_ = read_id(file, "tokenizer.ggml.unknown_token_id", defaults.unk);
  read_types(file);
  index_texts();
  add_bos_ = file.get_or<bool>("tokenizer.ggml.add_bos_token", defaults.add_bos);
  if (bos_ == kNoToken) add_bos_ = false;
  collect_end_of_generation(file);
}

void Tokenizer::read_types(const GgufFile& file) {
  types_.assign(texts_.size(), TokenType::kNormal);
  const auto types = file.get_array<int32_t>("tokenizer.ggml.token_type");
  if (!types) {
    for (size_t id = 0; id < texts_.size(); ++id) {
      if (byte_value(texts_[id]) >= 0) types_[id] = TokenType::kByte;
    }
    for (const TokenId id : {bos_, eos_, unk_}) {
      if (id != kNoToken) types_[id] = TokenType::kControl;
    }
    return;
  }
  if (types->size() != texts_.size()) {
    throw input_error(file.path() + ": tokenizer.ggml.token_type has " +
                      std::to_string(types->size()) + " entries, tokenizer.ggml.tokens " +
                      std::to_string(texts_.size()));
  }
  for (size_t id = 0; id < types->size(); ++id) {
    const int32_t type = (*types)[id];
    if (type >= 1 && type <= 6) types_[id] = static_cast<TokenType>(type);
  }
}

// Of several tokens with one text an ordinary one is found first, else the lowest id.
void Tokenizer::index_texts() {
  index_.reserve(texts_.size());
  for (TokenId id = 0; id < static_cast<TokenId>(vocab_size_); ++id) {
    const auto [at, inserted] = index_.emplace(texts_[id], id);
    if (!inserted && types_[id] == TokenType::kNormal && types_[at->second] != TokenType::kNormal) {
      at->second = id;
    }
    const TokenType type = types_[id];
    if (type == TokenType::kControl || type == TokenType::kUnknown ||
        type == TokenType::kUserDefined) {
      special_.add(texts_[id], id, type == TokenType::kUserDefined);
    }
  }
}

TokenId Tokenizer::read_id(const GgufFile& file, const char* key, TokenId fallback) const {
  const auto value = file.get<uint64_t>(key);
  if (!value)
    return fallback >= 0 && static_cast<uint32_t>(fallback) < vocab_size_ ? fallback : kNoToken;
  if (*value == kNoneInFile) return kNoToken;
  if (*value >= vocab_size_) {
    throw input_error(file.path() + ": " + key + " is " + std::to_string(*value) +
                      ", but the vocabulary has " + std::to_string(vocab_size_) + " tokens");
  }
  return static_cast<TokenId>(*value);
}

void Tokenizer::collect_end_of_generation(const GgufFile& file) {
  auto& ends = end_of_generation_;
  ends.push_back(eos_);
  ends.push_back(read_id(file, "tokenizer.ggml.eot_token_id", kNoToken));
  ends.push_back(read_id(file, "tokenizer.ggml.eom_token_id", kNoToken));
  for (const std::string_view text : kEndTexts) {
    const TokenId id = find(text);
    if (id != kNoToken && types_[id] == TokenType::kControl) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (ends.front() == kNoToken) ends.erase(ends.begin());
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

TokenId Tokenizer::find(std::string_view piece) const {
  const auto at = index_.find(piece);
  return at == index_.end() ? kNoToken : at->second;
}

TokenId Tokenizer::find_normal(std::string_view piece) const {
  const TokenId id = find(piece);
  return id != kNoToken && types_[id] == TokenType::kNormal ? id : kNoToken;
}

const std::string& Tokenizer::text_of(TokenId id) const {
  if (id < 0 || static_cast<uint32_t>(id) >= vocab_size_) {
    throw input_error("token id " + std::to_string(id) + " is outside the vocabulary of " +
                      std::to_string(vocab_size_) + " tokens");
  }
  return texts_[id];
}

int Tokenizer::byte_value(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::vector<Tokenizer::Fragment> Tokenizer::fragments(std::string_view text,
                                                      bool parse_special) const {
  std::vector<Fragment> out;
  size_t at = 0;
  while (at < text.size()) {
    const auto match = special_.find(text, at, parse_special);
    const size_t end = match ? match->begin : text.size();
    if (end > at) out.push_back({text.substr(at, end - at), kNoToken});
    if (!match) break;
    out.push_back({text.substr(match->begin, match->end - match->begin), match->id});
    at = match->end;
  }
  return out;
}

std::optional<std::string> Tokenizer::special_piece(TokenId id, bool render_special) const {
  const std::string& text = text_of(id);
  switch (types_[id]) {
    case TokenType::kControl:
    case TokenType::kUnknown:
      return render_special ? text : std::string();
    case TokenType::kUserDefined:  // found in the text as it stands, so given back as it stands
      return text;
    case TokenType::kUnused:
      return std::string();
    case TokenType::kByte:
      if (const int value = byte_value(text); value >= 0) {
        return std::string(1, static_cast<char>(value));
      }
      return text;
    case TokenType::kNormal:
      break;
  }
  return std::nullopt;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool render_special) const {
  std::string out;
  bool at_start = strip_leading_space_;
  for (const TokenId id : ids) {
    const std::string bytes = piece(id, render_special);
    const bool strip = at_start && !bytes.empty() && bytes[0] == ' ';
    out.append(bytes, strip ? 1 : 0);
    if (!bytes.empty()) at_start = false;
  }
  return out;
}

}  // namespace kvasir
