// Cuts text into the pieces inside which byte-level BPE merges, by the expressions that the
// vocabulary was trained with (tokenizer.ggml.pre names them).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

class Pretokenizer {
 public:
  // `name` as in tokenizer.ggml.pre. Error(kInput) starting with `where` (the file), naming it and
  // the supported ones.
  Pretokenizer(std::string_view name, const std::string& where);
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  // End offsets of the pieces, ascending, the last one text.size(); empty for empty text. Any
  // bytes: a byte that is not part of a well-formed UTF-8 character is a piece of its own.
  std::vector<size_t> split(std::string_view text) const;

  bool ignore_merges() const { return ignore_merges_; }  // a piece in the vocabulary is one token
  bool adds_bos() const { return adds_bos_; }            // default when the file does not say
  static std::vector<std::string> names();               // every name and alias, sorted

 private:
  struct Stage;
  struct Match;
  void split_valid(std::string_view text, size_t base, const Match& memory,
                   std::vector<size_t>& ends) const;

  std::vector<std::unique_ptr<Stage>> stages_;
  bool ignore_merges_ = false;
  bool adds_bos_ = false;
};

}  // namespace kvasir
