// A step of the scheduler: who enters, what is computed, who is told; see scheduler.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/serving/scheduler_impl.h"

namespace kvasir {
namespace {

uint64_t nanos_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count());
}

}  // namespace

bool Scheduler::Impl::fits(const PromptGroup& group) const {
  if (n_running + group.members.size() > max_sequences) return false;
  const auto& seq = group.members[0]->request.seq;
  return memory.fits(bytes_of(group) - (seq ? memory.held(*seq).bytes : MemoryBytes()));
}

bool Scheduler::Impl::admit() {
  bool any = false;
  for (size_t i = 0; i < schedule.queue.size();) {
    const std::shared_ptr<PromptGroup> group = schedule.queue[i];
    if (group->is_paused) {
      ++i;
      continue;
    }
    if (!fits(*group)) break;
    schedule.queue.erase(schedule.queue.begin() + static_cast<ptrdiff_t>(i));
    enter(*group);
    if (!group->members.empty() && group->left() > 0) schedule.reading.push_back(group);
    any = true;
  }
  return any;
}

// What `fn` throws fails the member. is_lost: its sequence with it.
template <class Fn>
void Scheduler::Impl::each_or_fail(const PromptGroup& group, Fn&& fn, bool is_lost) {
  for (Job* job : std::vector<Job*>(group.members)) {
    try {
      fn(*job);
    } catch (const std::exception&) {
      end(*job, RequestState::kFailed, std::current_exception(), is_lost);
    }
  }
}

void Scheduler::Impl::enter(PromptGroup& group) {
  const SharedBytes shared = memory.share(group.shared_bytes);
  each_or_fail(group, [&](Job& job) {
    ++n_running;
    job.shared = job.request.seq ? memory.let_go(*job.request.seq).shared : shared;
    memory.take(job.own_bytes);
    job.status.queued_nanos = nanos_since(job.submitted);
    job.status.state = RequestState::kPrefilling;
    job.status.seq = job.request.seq ? *job.request.seq : engine.open(job.request.strategy);
  });
  if (restores) restore(group);
  if (!group.prompt.empty())
    return each_or_fail(group,
                        [&](Job& job) { engine.begin_prompt(job.status.seq, group.left()); });
  for (Job* job : std::vector<Job*>(group.members)) {
    job->status.state = RequestState::kDecoding;
    schedule.decoding.push_back(job);
    advance(*job, job->request.logits);
  }
}

// All members go on from one place, since one of them reads for the others.
void Scheduler::Impl::restore(PromptGroup& group) {
  if (group.prompt.empty() || group.members.empty() || group.members[0]->request.seq) return;
  auto n = static_cast<uint32_t>(group.prompt.size());
  const auto find = [&](Job& job) {
    n = std::min(n, engine.restore(job.status.seq, group.prompt));
  };
  each_or_fail(group, find, true);
  if (group.members.empty()) return;
  const auto cut = [&](Job& job) {
    if (engine.kv_len(job.status.seq) > n) engine.truncate(job.status.seq, n);
    job.status.prompt_done = job.status.restored_tokens = n;
  };
  each_or_fail(group, cut, true);
  group.read = n;
}

void Scheduler::Impl::assemble(Batch& batch) {
  uint32_t left = max_step_tokens;
  for (Job* job : schedule.decoding) {
    if (!job->decodes()) continue;
    job->logits.resize(engine.vocab_size());
    batch.items.push_back(
        {.seq = job->status.seq, .tokens = {&*job->pending, 1}, .logits = job->logits});
    batch.decoding.push_back(job);
    --left;
  }
  while (!schedule.reading.empty()) {
    const std::shared_ptr<PromptGroup> group = schedule.reading.front();
    const uint32_t n = group->next_piece();
    if (n > left) break;  // it is the first of the next step
    left -= n;
    schedule.reading.pop_front();
    StepItem item{.seq = group->members[0]->status.seq,
                  .tokens = std::span(group->prompt).subspan(group->read, n)};
    if (n == group->left()) {
      Job& leader = *group->members[0];
      leader.logits.resize(engine.vocab_size());
      item.logits = leader.logits;
    }
    auto& followers = batch.followers.emplace_back();
    for (size_t i = 1; i < group->members.size(); ++i)
      followers.push_back(group->members[i]->status.seq);
    item.followers = followers;  // the list keeps its memory when `followers` grows
    batch.items.push_back(item);
    batch.reading.push_back(group);
  }
}

bool Scheduler::step() {
  Impl& m = *impl_;
  m.in_step = true;
  bool any = m.admit();
  Impl::Batch batch;
  m.assemble(batch);
  if (!batch.items.empty()) {
    any = true;
    std::vector<ItemResult> results;
    const auto begin = std::chrono::steady_clock::now();
    try {
      results = m.engine.step(batch.items);
    } catch (const std::exception&) {  // concerns every item
      for (const StepItem& item : batch.items)
        results.push_back({.error = std::current_exception(),
                           .is_lost = true,
                           .follower_errors = {item.followers.size(), std::current_exception()}});
    }
    m.deliver(batch, results, nanos_since(begin));
  }
  m.settle();
  carry_out_pauses();
  return any;
}

void Scheduler::run() {
  while (step()) {
  }
}

void Scheduler::Impl::deliver(Batch& batch, const std::vector<ItemResult>& results,
                              uint64_t nanos) {
  size_t i = 0;
  for (Job* job : batch.decoding) {
    const ItemResult& result = results[i++];
    job->status.decode_nanos += nanos;
    if (result.error) {
      end(*job, RequestState::kFailed, result.error, result.is_lost);
      continue;
    }
    ++job->status.decoded_tokens;
    advance(*job, job->logits);
  }
  for (const auto& group : batch.reading) {
    deliver_piece(*group, group->members, batch.items[i], results[i], nanos);
    ++i;
    if (!group->members.empty() && group->left() > 0) schedule.reading.push_back(group);
  }
}

// `members`: those of the group when the step began; callbacks may end or pause some.
void Scheduler::Impl::deliver_piece(PromptGroup& group, std::vector<Job*> members,
                                    const StepItem& item, const ItemResult& result,
                                    uint64_t nanos) {
  Job& leader = *members[0];
  if (!result.error) group.read += static_cast<uint32_t>(item.tokens.size());
  std::vector<Job*> read;
  for (size_t i = 0; i < members.size(); ++i) {
    Job& job = *members[i];
    job.status.prefill_nanos += nanos;
    const std::exception_ptr error = i == 0 ? result.error
                                     : i <= result.follower_errors.size()
                                         ? result.follower_errors[i - 1]
                                         : result.error;
    if (!error && !result.error) {
      job.status.prompt_done = group.read;
      job.status.prompt_read_by = leader.id;
      read.push_back(&job);
    } else if (i > 0 && result.error && (!error || error == result.error)) {
      if (result.is_lost) read_anew(job);
    } else {
      end(job, RequestState::kFailed, error, i > 0 || result.is_lost);
    }
  }
  const uint32_t done = group.read, total = static_cast<uint32_t>(group.prompt.size());
  for (Job* job : read) {
    if (job->request.on_progress) call(*job, [&] { job->request.on_progress(done, total); });
    if (done == total && !job->has_ended) prompt_read(*job, item.logits);
  }
}

// Its sequence went with the one that read the prompt for it, through no fault of its own.
void Scheduler::Impl::read_anew(Job& job) {
  engine.close(job.status.seq);
  job.status.seq = 0;
  try {
    job.status.seq = engine.open(job.request.strategy);
    engine.begin_prompt(job.status.seq, static_cast<uint32_t>(job.group->prompt.size()));
  } catch (const std::exception&) {
    return end(job, RequestState::kFailed, std::current_exception());
  }
  job.status.prompt_done = job.status.restored_tokens = job.group->read = 0;
}

void Scheduler::Impl::prompt_read(Job& job, std::span<const float> logits) {
  job.status.state = RequestState::kDecoding;
  schedule.decoding.push_back(&job);
  if (job.request.on_prompt_end) call(job, [&] { job.request.on_prompt_end(logits); });
  if (!job.has_ended) advance(job, logits);
}

// What follows a token: another one, or the end.
void Scheduler::Impl::advance(Job& job, std::span<const float> logits) {
  job.pending.reset();
  if (job.is_cancelled) return;
  if (job.request.next) call(job, [&] { job.pending = job.request.next(logits); });
  if (job.has_ended || job.is_cancelled) return;
  if (!job.pending || job.status.decoded_tokens >= job.request.max_new_tokens)
    end(job, RequestState::kDone);
}

// What a callback throws ends its request.
template <class Fn>
void Scheduler::Impl::call(Job& job, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception&) {
    end(job, RequestState::kFailed, std::current_exception());
  }
}

void Scheduler::Impl::end(Job& job, RequestState state, std::exception_ptr error, bool is_lost) {
  if (job.has_ended) return;
  job.has_ended = true;
  const bool has_entered = job.status.state != RequestState::kQueued;
  schedule.remove(job);
  if (has_entered) {
    --n_running;
    memory.give(job.own_bytes);
  }
  job.status.state = state;
  job.status.error = std::move(error);
  job.status.is_paused = false;
  SequenceId& seq = job.status.seq;
  if (!has_entered && job.request.seq) {
    seq = *job.request.seq;
    job.shared = memory.let_go(seq).shared;
  }
  if (seq != 0 && job.request.keep && !is_lost) {
    if (engine.prompt_left(seq) > 0) engine.end_prompt(seq);
    const MemoryBytes bytes =
        engine.sequence_bytes(job.request.strategy, engine.kv_len(seq), job.shared_tokens);
    memory.hold(seq, {bytes, job.shared_tokens, job.shared});
  } else if (seq != 0) {
    engine.close(seq);
    seq = 0;
  }
  job.shared.reset();
  if (job.request.on_end) job.request.on_end(job.status);
}

// What callbacks asked for, and what has ended goes.
void Scheduler::Impl::settle() {
  in_step = true;  // on_end may cancel others
  for (bool any = true; any;) {
    any = false;
    for (const auto& [id, job] : schedule.jobs) {
      if (!job->is_cancelled || job->has_ended) continue;
      end(*job, RequestState::kCancelled);
      any = true;
    }
  }
  in_step = false;
  std::erase_if(schedule.jobs, [](const auto& job) { return job.second->has_ended; });
}

}  // namespace kvasir
