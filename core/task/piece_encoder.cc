// Encoding by pieces; see piece_encoder.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/piece_encoder.h"

#include <algorithm>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr size_t kMaxKnown = size_t{1} << 16;  // pieces with numbers are without end
constexpr size_t kShownBytes = 60;             // of a text that cannot be written
constexpr std::string_view kLineEnd = "\n";

// End of the piece that starts at `begin`.
size_t piece_end(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '\n') return at + 1;
    if (at > begin && text[at] == ' ' && text[at - 1] != ' ') return at;
  }
  return text.size();
}

}  // namespace

PieceEncoder::PieceEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const Tokenizer::EncodeOptions plain = {.add_bos = false, .parse_special = false};
  if (tokenizer.model_name() != "llama") return;
  const std::vector<TokenId> letter = tokenizer.encode("a", plain);
  if (letter.empty() || tokenizer.piece(letter[0], false) == "a") return;
  line_end_ = tokenizer.encode(kLineEnd, plain);
}

// SentencePiece puts a space in front of a text, except for some models. A piece from the middle is
// therefore encoded behind a line end, whose tokens are taken off again.
PieceEncoder::Piece PieceEncoder::make_piece(std::string_view text, bool starts_text) const {
  const bool behind_line = !starts_text && !line_end_.empty();
  Piece made;
  made.ids = tokenizer_.encode(behind_line ? std::string(kLineEnd).append(text) : std::string(text),
                               {.add_bos = false, .parse_special = false});
  if (behind_line && made.ids.size() >= line_end_.size() &&
      std::equal(line_end_.begin(), line_end_.end(), made.ids.begin()))
    made.ids.erase(made.ids.begin(), made.ids.begin() + static_cast<ptrdiff_t>(line_end_.size()));
  std::string bytes;
  for (const TokenId id : made.ids) {
    const std::string piece = tokenizer_.piece(id, false);
    bytes += piece;
    made.lengths.push_back(piece.size());
  }
  if (starts_text && bytes.size() == text.size() + 1 && bytes[0] == ' ') {
    bytes.erase(0, 1);
    --made.lengths[0];
  }
  if (bytes != text)
    throw input_error("the tokenizer cannot write \"" + std::string(text.substr(0, kShownBytes)) +
                      (text.size() > kShownBytes ? "…" : "") +
                      "\": tasks need one whose vocabulary has letters, digits and line ends");
  return made;
}

const PieceEncoder::Piece& PieceEncoder::piece(std::string_view text) {
  const auto at = known_.find(text);
  if (at != known_.end()) return at->second;
  if (known_.size() >= kMaxKnown) known_.clear();
  return known_.emplace(std::string(text), make_piece(text, false)).first->second;
}

EncodedText PieceEncoder::start(bool add_bos) const {
  EncodedText out;
  if (add_bos && tokenizer_.add_bos()) {
    out.ids.push_back(tokenizer_.bos());
    out.ends.push_back(0);
  }
  return out;
}

void PieceEncoder::append(const Piece& piece, EncodedText& out) {
  size_t end = out.ends.empty() ? 0 : out.ends.back();
  for (size_t i = 0; i < piece.ids.size(); ++i) {
    out.ids.push_back(piece.ids[i]);
    out.ends.push_back(end += piece.lengths[i]);
  }
}

EncodedText PieceEncoder::encode(std::string_view text, bool add_bos) {
  EncodedText out = start(add_bos);
  for (size_t begin = 0; begin < text.size();) {
    const size_t stop = piece_end(text, begin);
    const std::string_view part = text.substr(begin, stop - begin);
    if (begin == 0 && !line_end_.empty()) {
      append(make_piece(part, true), out);
    } else {
      append(piece(part), out);
    }
    begin = stop;
  }
  return out;
}

EncodedText PieceEncoder::encode_parts(const std::vector<std::string>& parts) {
  EncodedText out = start(true);
  bool starts_text = true;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    append(make_piece(part, starts_text), out);
    starts_text = false;
  }
  return out;
}

size_t PieceEncoder::count(std::string_view text) {
  size_t n = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(text, begin);
    n += piece(text.substr(begin, end - begin)).ids.size();
    begin = end;
  }
  return n;
}

}  // namespace kvasir
