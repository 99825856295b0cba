// What the scheduler keeps: requests that have not ended, prompts that are read, memory in use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/serving/request.h"

namespace kvasir {

struct Job;

// Bytes that several sequences share; the last of them gives them back to the account.
using SharedBytes = std::shared_ptr<const void>;

// A prompt and the requests that read it together: the sequence of the first leads.
struct PromptGroup {
  std::vector<Job*> members;  // that have not ended; they stay when the prompt is read
  std::vector<TokenId> prompt;
  uint32_t piece_tokens = 0;
  uint32_t read = 0;         // tokens
  MemoryBytes shared_bytes;  // K and V that members share
  bool is_paused = false;    // has one member then

  uint32_t left() const { return static_cast<uint32_t>(prompt.size()) - read; }
  uint32_t next_piece() const { return std::min(piece_tokens, left()); }
};

// A request that has not ended.
struct Job {
  RequestId id = 0;
  Request request;
  RequestStatus status;
  std::shared_ptr<PromptGroup> group;
  uint32_t first_tokens = 0;   // of its sequence when it was submitted
  uint32_t shared_tokens = 0;  // of them and of its prompt, what it shares with others
  SharedBytes shared;          // for those
  MemoryBytes own_bytes;       // counted for it besides
  std::chrono::steady_clock::time_point submitted;
  std::optional<TokenId> pending;  // to be decoded
  std::vector<float> logits;       // [vocab], of its last token
  bool is_cancelled = false;       // inside a step: ends when the step does
  bool has_ended = false;

  bool decodes() const {
    return status.state == RequestState::kDecoding && !status.is_paused && pending && !has_ended;
  }
};

// Memory counted for running requests and for sequences that were kept.
class MemoryAccount {
 public:
  explicit MemoryAccount(const MemoryBytes& limit) : limit_(limit) {}
  const MemoryBytes& limit() const { return limit_; }
  const MemoryBytes& used() const { return used_; }
  bool fits(const MemoryBytes& bytes) const {
    return used_.fits(limit_) && bytes.fits(limit_ - used_);
  }
  void take(const MemoryBytes& bytes) { used_ += bytes; }
  void give(const MemoryBytes& bytes) { used_ = used_ - bytes; }
  // Takes the bytes; null for none. What is returned must not outlive this.
  SharedBytes share(const MemoryBytes& bytes) {
    if (bytes == 0) return nullptr;
    take(bytes);
    return {this, [bytes](MemoryAccount* account) { account->give(bytes); }};
  }

  // Of a sequence that was kept.
  struct Held {
    MemoryBytes bytes;
    uint32_t shared_tokens = 0;
    SharedBytes shared{};
  };
  void hold(SequenceId seq, Held held) {
    take(held.bytes);
    held_[seq] = std::move(held);
  }
  Held let_go(SequenceId seq) {
    Held was = held(seq);
    give(was.bytes);
    held_.erase(seq);
    return was;
  }
  Held held(SequenceId seq) const {
    const auto it = held_.find(seq);
    return it == held_.end() ? Held{} : it->second;
  }

 private:
  MemoryBytes limit_, used_;
  std::map<SequenceId, Held> held_;
};

// Requests in groups, and groups in the order in which they enter and read.
struct Schedule {
  std::map<RequestId, std::unique_ptr<Job>> jobs;
  std::deque<std::shared_ptr<PromptGroup>> queue;    // in the order of submission
  std::deque<std::shared_ptr<PromptGroup>> reading;  // the next in turn first; none is paused
  std::vector<Job*> decoding;                        // in the order they began to

  Job* find(RequestId id) const;
  // The group of the job alone, with what is read already; where it was queued, behind its old one.
  void split(Job& job);
  void remove(const PromptGroup& group);  // from queue and turn
  void remove(Job& job);                  // from its group, and everywhere but `jobs`
};

}  // namespace kvasir
