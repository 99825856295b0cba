// A made-up byte-level BPE vocabulary, or a copy of another file's, for random models.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/synthetic/random_tokenizer.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/model/tokenizer/byte_alphabet.h"
#include "core/model/tokenizer/utf8.h"

namespace kvasir {
namespace {

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUnused = 5 };  // the file format's numbers

constexpr std::string_view kWords =
    "the of and to in a is that it was for on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find use "
    "may water long little very after words called just where most know get through back much "
    "before go good new write our used me man too any day same right look think also around "
    "another came come work three word must because does part even place well such here take why "
    "things help put years different away again off went old number great tell men say small every "
    "found still between name should home big give air line set own under read last never us left "
    "end along while might next sound below saw something thought both few those always looked "
    "show large often together asked house world going want school important until form food keep "
    "children feet land side without boy once animals life enough took sometimes four head above "
    "kind began almost live page got earth need far hand high year mother light parts country "
    "father let night following picture being study second eyes soon times story since white days "
    "ever paper hard near sentence better best across during today others however sure means knew "
    "try told young miles sun ways thing whole hear example heard several change answer room sea "
    "against top turned learn point city play toward five using himself usually";
constexpr size_t kMerges = 600;

// The symbols of the 256 bytes in the order of GPT-2's vocabulary: by code point.
std::vector<std::string> byte_symbols() {
  auto codes = byte_alphabet();
  std::sort(codes.begin(), codes.end());
  std::vector<std::string> out;
  for (const uint32_t code : codes) out.push_back(utf8::encode_short(code));
  return out;
}

using Pair = std::pair<std::string, std::string>;

// The words as symbol sequences, each once with the space before it and once without.
std::vector<std::vector<std::string>> split_words() {
  const std::string space = utf8::encode_short(byte_alphabet()[' ']);
  std::vector<std::vector<std::string>> out;
  for (size_t begin = 0; begin < kWords.size();) {
    const size_t end = std::min(kWords.find(' ', begin), kWords.size());
    std::vector<std::string> word;
    for (const char c : kWords.substr(begin, end - begin)) word.emplace_back(1, c);
    out.push_back(word);
    word.insert(word.begin(), space);
    out.push_back(std::move(word));
    begin = end + 1;
  }
  return out;
}

void apply_merge(std::vector<std::string>& word, const Pair& merge) {
  size_t kept = 0;
  for (size_t i = 0; i < word.size(); ++kept) {
    const bool joins = i + 1 < word.size() && word[i] == merge.first && word[i + 1] == merge.second;
    std::string symbol = joins ? merge.first + merge.second : std::move(word[i]);
    i += joins ? 2 : 1;
    word[kept] = std::move(symbol);
  }
  word.resize(kept);
}

// Byte-pair encoding learnt from the word list: the most frequent pair first, ties in byte order.
std::vector<Pair> learn_merges() {
  auto words = split_words();
  std::vector<Pair> merges;
  while (merges.size() < kMerges) {
    std::map<Pair, size_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    const auto best =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end()) break;
    merges.push_back(best->first);
    for (auto& word : words) apply_merge(word, merges.back());
  }
  return merges;
}

std::string pad_name(size_t id) { return "[PAD" + std::to_string(id) + "]"; }

}  // namespace

uint32_t set_synthetic_tokenizer(GgufWriter& writer, const std::string& pre, bool add_bos,
                                 uint32_t vocab_size) {
  const std::vector<std::string> control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<std::string> tokens = byte_symbols();
  const size_t least = tokens.size() + control.size();
  if (vocab_size != 0 && vocab_size < least)
    throw input_error("vocab_size is " + std::to_string(vocab_size) +
                      "; the made-up tokenizer has " + std::to_string(least) + " tokens or more");
  std::vector<std::string> merges;
  static const std::vector<Pair> learnt = learn_merges();
  const size_t n_merges = vocab_size == 0 ? kMerges : std::min(kMerges, vocab_size - least);
  for (size_t i = 0; i < std::min(n_merges, learnt.size()); ++i) {
    const auto& [left, right] = learnt[i];
    tokens.push_back(left + right);  // this word list makes no text twice
    merges.push_back(left + " " + right);
  }
  std::vector<int32_t> types(tokens.size(), kNormal);
  const auto first_control = static_cast<uint32_t>(tokens.size());
  tokens.insert(tokens.end(), control.begin(), control.end());
  types.resize(tokens.size(), kControl);
  while (tokens.size() < vocab_size) tokens.push_back(pad_name(tokens.size()));
  types.resize(tokens.size(), kUnused);
  const auto n_tokens = static_cast<uint32_t>(tokens.size());

  writer.set("tokenizer.ggml.model", std::string("gpt2"));
  writer.set("tokenizer.ggml.pre", pre);
  writer.set("tokenizer.ggml.tokens", std::move(tokens));
  writer.set("tokenizer.ggml.token_type", std::move(types));
  writer.set("tokenizer.ggml.merges", std::move(merges));
  writer.set("tokenizer.ggml.bos_token_id", first_control);
  writer.set("tokenizer.ggml.eos_token_id", first_control + 2);
  writer.set("tokenizer.ggml.padding_token_id", first_control);
  writer.set("tokenizer.ggml.add_bos_token", add_bos);
  writer.set(
      "tokenizer.chat_template",
      std::string("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
                  "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"));
  return n_tokens;
}

uint32_t copy_tokenizer(GgufWriter& writer, const GgufFile& from, uint32_t vocab_size) {
  const auto texts = from.get_array<std::string_view>("tokenizer.ggml.tokens");
  if (!texts)
    throw input_error(from.path() + ": has no tokenizer to copy (metadata key " +
                      "\"tokenizer.ggml.tokens\"); name a model or vocabulary file that has one");
  for (const std::string& key : from.keys())
    if (key.starts_with("tokenizer.")) writer.set(key, *from.raw(key));
  const size_t n_tokens = std::max<size_t>(vocab_size, texts->size());
  if (n_tokens == texts->size()) return static_cast<uint32_t>(n_tokens);

  std::vector<std::string> tokens(texts->begin(), texts->end());
  while (tokens.size() < n_tokens) tokens.push_back(pad_name(tokens.size()));
  writer.set("tokenizer.ggml.tokens", std::move(tokens));
  auto types = from.get_array<int32_t>("tokenizer.ggml.token_type")
                   .value_or(std::vector<int32_t>(texts->size(), kNormal));
  types.resize(n_tokens, kUnused);
  writer.set("tokenizer.ggml.token_type", std::move(types));
  if (auto scores = from.get_array<float>("tokenizer.ggml.scores")) {
    scores->resize(n_tokens, -1e6f);  // never preferred to a real piece
    writer.set("tokenizer.ggml.scores", std::move(*scores));
  }
  return static_cast<uint32_t>(n_tokens);
}

}  // namespace kvasir
