// Training records; see record.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/record.h"

#include <algorithm>

#include "core/error.h"
#include "core/task/prose.h"

namespace kvasir {
namespace {

constexpr uint64_t kMixStream = 0x1000;  // tells the stream that picks tasks from those of tasks
constexpr uint32_t kShortestSpan = 4;
constexpr uint32_t kLongestGap = 8;

bool is_space(std::string_view bytes) {
  return bytes.find_first_not_of(" \n") == std::string_view::npos;
}

}  // namespace

RecordStream::RecordStream(const std::vector<MixPart>& mix, const TaskOptions& options,
                           uint32_t length, uint64_t seed, PieceEncoder& encoder)
    : mix_(mix), length_(length), seed_(seed), encoder_(encoder) {
  const Tokenizer& tokenizer = encoder.tokenizer();
  if (tokenizer.vocab_size() > 65536)
    throw input_error("the vocabulary has " + std::to_string(tokenizer.vocab_size()) +
                      " entries, but ids are written in 16 bits: use --format jsonl");
  for (const MixPart& part : mix_) {
    weights_ += part.weight;
    generators_.emplace_back(part.task, options, length, encoder);
  }
  if (weights_ == 0) throw input_error("the mixture is empty: give a task a weight above 0");
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id)
    if (!tokenizer.piece(id, false).empty()) ordinary_.push_back(id);
}

const Record& RecordStream::next() {
  TaskRandom random(TaskRandom::state_of(seed_, kMixStream, index_));
  uint64_t at = random.below(weights_);
  size_t part = 0;
  while (at >= mix_[part].weight) at -= mix_[part++].weight;
  record_.task = mix_[part].task;
  record_.ids.clear();
  record_.mask.clear();
  if (record_.task == Task::kRepeat) {
    repeat(random);
  } else {
    const Sample sample = generators_[part].make(seed_, index_);
    size_t turn = 0, begin = 0;
    for (size_t i = 0; i < sample.tokens.ids.size(); ++i) {
      const size_t end = sample.tokens.ends[i];
      while (turn < sample.turns.size() && sample.turns[turn].answer.end <= begin) ++turn;
      const bool answers = turn < sample.turns.size() && end > sample.turns[turn].answer.begin;
      push(sample.tokens.ids[i],
           answers && !is_space(std::string_view(sample.text).substr(begin, end - begin)));
      begin = end;
    }
    pad(random);
  }
  ++index_;
  return record_;
}

void RecordStream::push(TokenId id, bool marked) {
  if (full()) return;
  record_.ids.push_back(static_cast<uint16_t>(id));
  record_.mask.push_back(marked);
}

void RecordStream::pad(TaskRandom& random) {
  for (const char* separator = ""; !full(); separator = " ")
    for (const TokenId id :
         encoder_.encode(std::string(separator).append(prose_sentence(random)), false).ids)
      push(id, false);
}

void RecordStream::repeat(TaskRandom& random) {
  if (encoder_.tokenizer().add_bos()) push(encoder_.tokenizer().bos(), false);
  const std::span<const TokenId> from(ordinary_);
  std::vector<TokenId> span;
  const auto gap = [&] {
    for (uint32_t n = random.between(0, kLongestGap); n > 0; --n) push(random.pick(from), false);
  };
  while (!full()) {
    const auto left = static_cast<uint32_t>(length_ - record_.ids.size());
    const uint32_t longest = std::max(kShortestSpan, left / 2);
    span.clear();
    // Short and long ones alike: the upper end of the range is drawn first.
    const uint32_t n = random.between(kShortestSpan, random.between(kShortestSpan, longest));
    for (uint32_t i = 0; i < n; ++i) span.push_back(random.pick(from));
    gap();
    for (const TokenId id : span) push(id, false);
    gap();
    for (size_t i = 0; i < span.size(); ++i) push(span[i], i > 0);
  }
}

}  // namespace kvasir
