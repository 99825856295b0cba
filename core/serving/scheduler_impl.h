// What Scheduler holds; its functions are in scheduler.cc (what is asked for) and scheduler_step.cc
// (a step).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/serving/schedule.h"
#include "core/serving/scheduler.h"

namespace kvasir {

struct Scheduler::Impl {
  Impl(Engine& engine_in, const SchedulerOptions& options)
      : engine(engine_in),
        max_step_tokens(limit_of(options.max_step_tokens, engine.max_step_tokens())),
        max_sequences(std::min(max_step_tokens,
                               limit_of(options.max_sequences, engine.geometry().max_sequences))),
        memory(options.memory_bytes),
        restores(options.restores) {}

  // 0 and more than there is: all there is.
  static uint32_t limit_of(uint32_t wanted, uint32_t all) {
    return wanted ? std::min(wanted, all) : all;
  }

  // What a step does, and for whom.
  struct Batch {
    std::vector<StepItem> items;
    std::vector<Job*> decoding;                         // of items [0, decoding.size())
    std::vector<std::shared_ptr<PromptGroup>> reading;  // of the items behind
    std::vector<std::vector<SequenceId>> followers;     // of those
  };

  // Tokens of its sequence, which has `first` of them, when the request ends, at most.
  uint32_t total_tokens(const Request& request, uint32_t first, size_t prompt_tokens) const;
  uint32_t first_tokens(const Request& request) const;
  void check(const Request& request, const std::vector<TokenId>& prompt) const;
  Job& add(Request request);
  void count_memory(PromptGroup& group) const;
  bool joins(const PromptGroup& group, const Job& job) const;
  MemoryBytes bytes_of(const PromptGroup& group) const;
  bool fits(const PromptGroup& group) const;
  bool admit();
  void enter(PromptGroup& group);
  void restore(PromptGroup& group);
  template <class Fn>
  void each_or_fail(const PromptGroup& group, Fn&& fn, bool is_lost = false);
  void assemble(Batch& batch);
  void deliver(Batch& batch, const std::vector<ItemResult>& results, uint64_t nanos);
  void deliver_piece(PromptGroup& group, std::vector<Job*> members, const StepItem& item,
                     const ItemResult& result, uint64_t nanos);
  void read_anew(Job& job);
  void prompt_read(Job& job, std::span<const float> logits);
  void advance(Job& job, std::span<const float> logits);
  template <class Fn>
  void call(Job& job, Fn&& fn);
  void end(Job& job, RequestState state, std::exception_ptr error = {}, bool is_lost = false);
  void settle();

  Engine& engine;
  uint32_t max_step_tokens, max_sequences, n_running = 0;
  MemoryAccount memory;
  bool restores;
  Schedule schedule;
  RequestId next_id = 1;
  bool in_step = false;
  std::vector<std::pair<RequestId, bool>> pauses;  // asked for inside a step: true = pause
};

}  // namespace kvasir
