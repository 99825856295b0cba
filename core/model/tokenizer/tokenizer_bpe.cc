// Byte pair encoding over bytes (Radford et al. 2019, the GPT-2 report; encoder.py of
// openai/gpt-2), with a queue so that long pieces cost n log n.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/tokenizer_bpe.h"

#include <algorithm>
#include <queue>

#include "core/error.h"
#include "core/model/tokenizer/byte_alphabet.h"
#include "core/model/tokenizer/utf8.h"
#include "core/model/tokenizer/word_cache.h"

namespace kvasir {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// byte_alphabet() as text, and back.
struct ByteAlphabet {
  std::array<std::string, 256> text;           // UTF-8 per byte
  std::unordered_map<uint32_t, uint8_t> byte;  // per code point

  ByteAlphabet() {
    const auto code = byte_alphabet();
    for (size_t b = 0; b < code.size(); ++b) {
      text[b] = utf8::encode_short(code[b]);
      byte.emplace(code[b], static_cast<uint8_t>(b));
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet instance;
  return instance;
}

// Bytes that a vocabulary text stands for; characters outside the alphabet stand for themselves.
std::string bytes_of(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t n = utf8::char_bytes(text.substr(at));
    const std::string_view character = text.substr(at, std::max<size_t>(1, n));
    at += character.size();
    const auto byte =
        n == 0 ? alphabet().byte.end() : alphabet().byte.find(utf8::code_point(character));
    if (byte == alphabet().byte.end()) {
      out.append(character);
    } else {
      out.push_back(static_cast<char>(byte->second));
    }
  }
  return out;
}

std::unique_ptr<Pretokenizer> make_pretokenizer(const GgufFile& file) {
  return std::make_unique<Pretokenizer>(
      file.get_or<std::string_view>("tokenizer.ggml.pre", "default"), file.path());
}

}  // namespace

// Working memory of one encode() call.
struct BpeTokenizer::Scratch {
  struct Node {
    size_t prev, next;  // kNone at the ends
    Symbol symbol;
    bool merged = false;  // into its left neighbour
  };
  struct Pair {
    Merge merge;
    size_t left, right;
    Symbol right_symbol;  // as it was; a left one that changed has merged its right neighbour
    bool operator<(const Pair& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
    }
  };
  std::vector<Node> nodes;
  std::priority_queue<Pair> pairs;
  std::string spelled;
  WordCache words;  // of the text given to encode()
};

BpeTokenizer::BpeTokenizer(const GgufFile& file) : BpeTokenizer(file, make_pretokenizer(file)) {}

BpeTokenizer::BpeTokenizer(const GgufFile& file, std::unique_ptr<Pretokenizer> pretokenizer)
    : Tokenizer(file, {.add_bos = pretokenizer->adds_bos()}),
      pretokenizer_(std::move(pretokenizer)) {
  pre_name_ = file.get_or<std::string_view>("tokenizer.ggml.pre", "default");
  read_merges(file);
  prepare_replacement();
}

BpeTokenizer::Symbol BpeTokenizer::intern(const std::string& text,
                                          std::unordered_map<std::string, Symbol>& extra) {
  if (const TokenId id = find_normal(text); id != kNoToken) return static_cast<Symbol>(id);
  const auto next = static_cast<Symbol>(vocab_size_ + extra_bytes_.size());
  const auto [at, inserted] = extra.emplace(text, next);
  if (inserted) extra_bytes_.push_back(bytes_of(text));
  return at->second;
}

void BpeTokenizer::read_merges(const GgufFile& file) {
  const auto merges = file.get_array<std::string_view>("tokenizer.ggml.merges");
  if (!merges) {
    throw input_error(file.path() +
                      ": tokenizer.ggml.merges is missing; convert the model again with a "
                      "converter that writes it");
  }
  if (merges->size() > static_cast<size_t>(INT32_MAX) / 4) {
    throw input_error(file.path() + ": tokenizer.ggml.merges has too many entries");
  }
  std::unordered_map<std::string, Symbol> extra;
  for (size_t b = 0; b < 256; ++b) byte_symbols_[b] = intern(alphabet().text[b], extra);
  merges_.reserve(merges->size());
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view line = (*merges)[rank];
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == line.size()) {
      throw input_error(file.path() + ": tokenizer.ggml.merges[" + std::to_string(rank) +
                        "] is not two texts with a space between");
    }
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const uint64_t pair = uint64_t{intern(left, extra)} << 32 | intern(right, extra);
    merges_.emplace(pair, Merge{static_cast<uint32_t>(rank), intern(left + right, extra)});
  }
}

// DeepSeek's vocabularies lack the bytes that never occur in UTF-8. Such a byte becomes <unk>, or
// U+FFFD where that can be written, and is left out otherwise.
void BpeTokenizer::prepare_replacement() {
  if (unk_ != kNoToken) {
    replacement_ = {unk_};
    return;
  }
  const bool writable =
      std::all_of(kReplacementCharacter.begin(), kReplacementCharacter.end(),
                  [&](char c) { return byte_symbols_[static_cast<uint8_t>(c)] < vocab_size_; });
  if (!writable) return;
  Scratch scratch;
  std::vector<TokenId> ids;
  encode_word(kReplacementCharacter, scratch, ids);
  replacement_ = std::move(ids);
}

std::vector<TokenId> BpeTokenizer::encode(std::string_view text,
                                          const EncodeOptions& options) const {
  std::vector<TokenId> out;
  if (options.add_bos && add_bos_) out.push_back(bos_);
  Scratch scratch;
  for (const Fragment& fragment : fragments(text, options.parse_special)) {
    if (fragment.id != kNoToken) {
      out.push_back(fragment.id);
    } else {
      encode_text(fragment.text, scratch, out);
    }
  }
  return out;
}

void BpeTokenizer::encode_text(std::string_view text, Scratch& scratch,
                               std::vector<TokenId>& out) const {
  size_t at = 0;
  for (const size_t end : pretokenizer_->split(text)) {
    scratch.words.append(text.substr(at, end - at), out,
                         [&](std::string_view word) { encode_word(word, scratch, out); });
    at = end;
  }
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch,
                               std::vector<TokenId>& out) const {
  if (pretokenizer_->ignore_merges()) {
    scratch.spelled.clear();
    for (const char c : word) scratch.spelled += alphabet().text[static_cast<uint8_t>(c)];
    const TokenId id = find_normal(scratch.spelled);
    if (id != kNoToken) return out.push_back(id);
  }
  auto& nodes = scratch.nodes;
  nodes.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    nodes.push_back({i - 1, i + 1, byte_symbols_[static_cast<uint8_t>(word[i])]});
  }
  nodes.back().next = kNone;  // the first one's prev is kNone: 0 - 1
  for (size_t i = 1; i < nodes.size(); ++i) add_pair(i - 1, i, scratch);
  while (!scratch.pairs.empty()) {
    const Scratch::Pair pair = scratch.pairs.top();
    scratch.pairs.pop();
    auto& left = nodes[pair.left];
    auto& right = nodes[pair.right];
    if (left.merged || right.merged || right.symbol != pair.right_symbol) continue;
    left.symbol = pair.merge.result;
    right.merged = true;
    left.next = right.next;
    if (left.next != kNone) nodes[left.next].prev = pair.left;
    add_pair(left.prev, pair.left, scratch);
    add_pair(pair.left, left.next, scratch);
  }
  for (size_t i = 0; i != kNone; i = nodes[i].next) emit(nodes[i].symbol, out);
}

void BpeTokenizer::add_pair(size_t left, size_t right, Scratch& scratch) const {
  if (left == kNone || right == kNone) return;
  const Symbol a = scratch.nodes[left].symbol, b = scratch.nodes[right].symbol;
  const auto merge = merges_.find(uint64_t{a} << 32 | b);
  if (merge != merges_.end()) scratch.pairs.push({merge->second, left, right, b});
}

void BpeTokenizer::emit(Symbol symbol, std::vector<TokenId>& out) const {
  if (symbol < vocab_size_) return out.push_back(static_cast<TokenId>(symbol));
  for (const char c : extra_bytes_[symbol - vocab_size_]) {
    const Symbol byte = byte_symbols_[static_cast<uint8_t>(c)];
    if (byte < vocab_size_) {
      out.push_back(static_cast<TokenId>(byte));
    } else {
      out.insert(out.end(), replacement_.begin(), replacement_.end());
    }
  }
}

std::string BpeTokenizer::piece(TokenId id, bool render_special) const {
  if (auto special = special_piece(id, render_special)) return *special;
  return bytes_of(text_of(id));
}

}  // namespace kvasir
