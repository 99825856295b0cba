// The merge loop of SentencePiece's BPE model (Kudo and Richardson 2018, arXiv:1808.06226).
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/tokenizer_spm.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>

#include "core/error.h"
#include "core/model/tokenizer/utf8.h"
#include "core/model/tokenizer/word_cache.h"

namespace kvasir {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space
constexpr size_t kNone = static_cast<size_t>(-1);

// End of the word that starts at `from`: space marks, then characters that are none.
size_t word_end(std::string_view text, size_t from) {
  size_t at = from;
  while (text.substr(at, kSpaceMark.size()) == kSpaceMark) at += kSpaceMark.size();
  const size_t next = text.find(kSpaceMark, at);
  return next == std::string_view::npos ? text.size() : next;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(text, at, hit - at).append(to);
  }
  return out.append(text, at);
}

}  // namespace

// Working memory of one encode() call.
struct SpmTokenizer::Scratch {
  struct Symbol {
    size_t prev, next;      // kNone at the ends
    std::string_view text;  // empty once merged into its left neighbour
  };
  struct Pair {
    float score;
    size_t left, right, n_bytes;  // n_bytes tells whether the symbols are still those meant
    bool operator<(const Pair& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  std::vector<Symbol> symbols;
  std::priority_queue<Pair> pairs;
  std::deque<std::string> escaped;  // fragments with spaces marked
  WordCache words;                  // of `escaped`
};

SpmTokenizer::SpmTokenizer(const GgufFile& file)
    : Tokenizer(file, {.bos = 1, .eos = 2, .unk = 0, .add_bos = true}) {
  const auto scores = file.get_array<float>("tokenizer.ggml.scores");
  if (!scores || scores->size() != texts_.size()) {
    throw input_error(file.path() + ": tokenizer.ggml.scores has " +
                      std::to_string(scores ? scores->size() : 0) +
                      " entries, tokenizer.ggml.tokens " + std::to_string(texts_.size()));
  }
  scores_ = *scores;
  // NaN has no place in an order.
  for (float& s : scores_) s = std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
  add_space_prefix_ = file.get_or<bool>("tokenizer.ggml.add_space_prefix", true);
  strip_leading_space_ = add_space_prefix_;

  byte_tokens_.fill(kNoToken);
  for (TokenId id = static_cast<TokenId>(vocab_size_) - 1; id >= 0; --id) {
    const std::string& text = texts_[id];
    if (types_[id] == TokenType::kByte && byte_value(text) >= 0)
      byte_tokens_[byte_value(text)] = id;
    if (types_[id] != TokenType::kNormal) continue;
    max_piece_bytes_ = std::max(max_piece_bytes_, text.size());
    if (word_end(text, 0) != text.size()) words_are_separate_ = false;
  }
}

std::vector<TokenId> SpmTokenizer::encode(std::string_view text,
                                          const EncodeOptions& options) const {
  std::vector<TokenId> out;
  if (options.add_bos && add_bos_) out.push_back(bos_);
  Scratch scratch;
  bool after_special = true;  // the start of the text counts as such
  for (const Fragment& fragment : fragments(text, options.parse_special)) {
    if (fragment.id != kNoToken) {
      out.push_back(fragment.id);
    } else {
      encode_text(fragment.text, add_space_prefix_ && after_special, scratch, out);
    }
    after_special = fragment.id != kNoToken;
  }
  return out;
}

// When no piece reaches over the start of a word, no merge does, and words can be merged one by
// one: same tokens, and each distinct word is merged once.
void SpmTokenizer::encode_text(std::string_view text, bool prefix, Scratch& scratch,
                               std::vector<TokenId>& out) const {
  std::string& marked = scratch.escaped.emplace_back(replace_all(text, " ", kSpaceMark));
  if (prefix) marked.insert(0, kSpaceMark);
  const std::string_view escaped = marked;
  if (!words_are_separate_) return encode_word(escaped, scratch, out);
  for (size_t at = 0; at < escaped.size();) {
    const size_t end = word_end(escaped, at);
    scratch.words.append(escaped.substr(at, end - at), out,
                         [&](std::string_view word) { encode_word(word, scratch, out); });
    at = end;
  }
}

void SpmTokenizer::encode_word(std::string_view word, Scratch& scratch,
                               std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const size_t n = std::max<size_t>(1, utf8::char_bytes(word.substr(at)));
    symbols.push_back({symbols.size() - 1, symbols.size() + 1, word.substr(at, n)});
    at += n;
  }
  symbols.back().next = kNone;  // the first one's prev is kNone: 0 - 1
  for (size_t i = 1; i < symbols.size(); ++i) add_pair(i - 1, i, scratch);
  while (!scratch.pairs.empty()) {
    const Scratch::Pair pair = scratch.pairs.top();
    scratch.pairs.pop();
    auto& left = symbols[pair.left];
    auto& right = symbols[pair.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != pair.n_bytes) {
      continue;
    }
    left.text = {left.text.data(), pair.n_bytes};
    right.text = {};
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].prev = pair.left;
    add_pair(left.prev, pair.left, scratch);
    add_pair(pair.left, left.next, scratch);
  }
  for (size_t i = 0; i != kNone; i = symbols[i].next) emit(symbols[i].text, out);
}

void SpmTokenizer::add_pair(size_t left, size_t right, Scratch& scratch) const {
  if (left == kNone || right == kNone) return;
  const std::string_view a = scratch.symbols[left].text, b = scratch.symbols[right].text;
  const size_t n_bytes = a.size() + b.size();
  if (n_bytes > max_piece_bytes_) return;
  const TokenId id = find_normal({a.data(), n_bytes});  // the two lie side by side
  if (id != kNoToken) scratch.pairs.push({scores_[id], left, right, n_bytes});
}

void SpmTokenizer::emit(std::string_view symbol, std::vector<TokenId>& out) const {
  if (const TokenId id = find_normal(symbol); id != kNoToken) return out.push_back(id);
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)]; };
  const bool all =
      std::all_of(symbol.begin(), symbol.end(), [&](char c) { return token_of(c) != kNoToken; });
  if (all) {
    for (const char c : symbol) out.push_back(token_of(c));
  } else if (unk_ != kNoToken) {
    out.push_back(unk_);  // one for the whole character; without <unk> it is left out
  }
}

std::string SpmTokenizer::piece(TokenId id, bool render_special) const {
  if (auto special = special_piece(id, render_special)) return *special;
  return replace_all(text_of(id), kSpaceMark, " ");
}

}  // namespace kvasir
