// Training batches: an endless stream of records of one length, each a sample's tokens and a mask
// of those that the context determines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/task/task.h"

namespace kvasir {

struct MixPart {
  Task task;
  uint32_t weight;
};

struct Record {
  Task task;
  std::vector<uint16_t> ids;
  std::vector<uint8_t> mask;  // 1: part of an answer, to be predicted from what stands before
};

// A record is one sample; tokens left over at its end are filler prose. Answer tokens that are
// white space alone are not marked: they are known from the form. `repeat` is made of token ids
// here: spans of ordinary tokens drawn from the whole vocabulary, each followed by itself; all of
// the second occurrence is marked but its first token, which nothing announces.
class RecordStream {
 public:
  // Error(kInput) when ids do not fit 16 bits, a task not the length, or no weight is above 0.
  RecordStream(const std::vector<MixPart>& mix, const TaskOptions& options, uint32_t length,
               uint64_t seed, PieceEncoder& encoder);
  const Record& next();

 private:
  void pad(TaskRandom& random);
  void repeat(TaskRandom& random);
  void push(TokenId id, bool marked);
  bool full() const { return record_.ids.size() >= length_; }

  std::vector<MixPart> mix_;
  uint64_t weights_ = 0;
  std::vector<TaskGenerator> generators_;  // of mix_; repeat has one that is not used
  uint32_t length_;
  uint64_t seed_, index_ = 0;
  PieceEncoder& encoder_;
  std::vector<TokenId> ordinary_;  // tokens that stand for text
  Record record_;
};

}  // namespace kvasir
