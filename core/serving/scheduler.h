// Many requests over one engine: a queue, admission by memory, and steps in which all of them move.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "core/serving/request.h"

namespace kvasir {

struct SchedulerOptions {
  uint32_t max_step_tokens = 0;  // 0, or more than the engine's: the engine's
  uint32_t max_sequences = 0;    // of running requests; 0, or more than the engine's: the engine's
  // For sequences, as Engine::sequence_bytes() counts them.
  MemoryBytes memory_bytes = MemoryBytes::unlimited();
  // Prompts of new sequences begin with what the storage has kept of earlier ones
  // (Engine::restore): those of submit_together() with what it has for all of them.
  bool restores = false;
};

// One step decodes a token of every running request, then reads pieces of prompts with the rest of
// max_step_tokens. Rules:
//
// Order. Requests enter in the order they were submitted: one that does not fit holds back those
// behind it, so that none waits for ever. Prompts are read in turn, a piece each: between two
// pieces of a prompt every other prompt that is being read gets one piece at most, and a step reads
// at least one piece as long as a prompt is there.
//
// Pieces. Those of a prompt have piece_tokens() each, whatever else runs, and the last one the
// rest: what a strategy that chooses or evicts by pieces makes of a prompt does not depend on other
// requests.
//
// Admission. A request enters when fewer than max_sequences run and the memory counted for its
// prompt and max_new_tokens fits in what is left of memory_bytes, of each kind.
//
// Errors. A request ends with the error of its own item; when the sequence that read a prompt for
// others ends, the others go on: without it, or, where its fault took theirs along, from the start.
//
// Not thread-safe: one call at a time. Makes no thread, prints nothing.
class Scheduler {
 public:
  // The engine must outlive it, and other sequences of the engine are left alone.
  explicit Scheduler(Engine& engine, const SchedulerOptions& options = {});
  // Closes the sequences of requests that have not ended, but for those that are queued and keep
  // the sequence they came with; no callback runs.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws, and queues nothing, when the request can never be served: Error(kInput) for a prompt
  // that is empty or longer than the context, Error(kResource) for one that needs more than all
  // memory.
  RequestId submit(Request request);
  // The same prompt for several strategies: those that can follow each other (Engine::can_follow)
  // enter together and read it once. `prompt` of the first is everyone's; no request names a
  // sequence. Throws as submit() does, and then queues none.
  std::vector<RequestId> submit_together(std::vector<Request> requests);
  // Any request that has not ended, and those that have: then nothing happens.
  void cancel(RequestId id);
  // A paused request keeps its place in memory and takes part in no step. One that read its prompt
  // with others reads the rest alone.
  void pause(RequestId id);
  void resume(RequestId id);

  // One step. False when there was nothing to do: no request, all paused, or the first in the queue
  // waits for memory that kept sequences hold.
  bool step();
  void run();  // steps until there is nothing to do
  // Of a request that has not ended, else null; valid until the next call.
  const RequestStatus* find(RequestId id) const;

  // A sequence that a request kept: closes it, and its memory is free again. Those that are not
  // closed here are the caller's.
  void close(SequenceId kept);

  uint32_t piece_tokens(StrategyId strategy) const;
  size_t n_queued() const;   // requests
  size_t n_running() const;  // requests that hold a sequence
  MemoryBytes memory_used() const;

 private:
  struct Impl;

  void carry_out_pauses();  // those that callbacks asked for

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
