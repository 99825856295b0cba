// See scheduler.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/serving/schedule.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t nanos_since(Clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

// 0 and more than there is: all there is.
uint32_t limit_of(uint32_t wanted, uint32_t all) { return wanted ? std::min(wanted, all) : all; }

}  // namespace

struct Scheduler::Impl {
  Impl(Engine& engine_in, const SchedulerOptions& options)
      : engine(engine_in),
        max_step_tokens(limit_of(options.max_step_tokens, engine.max_step_tokens())),
        max_sequences(std::min(max_step_tokens,
                               limit_of(options.max_sequences, engine.geometry().max_sequences))),
        memory(options.memory_bytes) {}

  // What a step does, and for whom.
  struct Batch {
    std::vector<StepItem> items;
    std::vector<Job*> decoding;                         // of items [0, decoding.size())
    std::vector<std::shared_ptr<PromptGroup>> reading;  // of the items behind
    std::vector<std::vector<SequenceId>> followers;     // of those
  };

  uint64_t total_tokens(const Request& request, size_t prompt_tokens) const;
  void check(const Request& request, const std::vector<TokenId>& prompt) const;
  Job& add(Request request);
  void count_memory(PromptGroup& group) const;
  bool joins(const PromptGroup& group, const Job& job) const;
  uint64_t bytes_of(const PromptGroup& group) const;
  bool fits(const PromptGroup& group) const;
  bool admit();
  void enter(PromptGroup& group);
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
  Schedule schedule;
  RequestId next_id = 1;
  bool in_step = false;
  std::vector<std::pair<RequestId, bool>> pauses;  // asked for inside a step: true = pause
};

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}

Scheduler::~Scheduler() {
  for (auto& [id, job] : impl_->schedule.jobs) {
    const SequenceId queued = job->request.keep ? 0 : job->request.seq.value_or(0);
    const SequenceId seq = job->status.seq ? job->status.seq : queued;
    if (seq != 0) impl_->engine.close(seq);
  }
}

// ---- what is asked for ----

// Tokens of its sequence when it ends, at most.
uint64_t Scheduler::Impl::total_tokens(const Request& request, size_t prompt_tokens) const {
  const uint64_t begin = request.seq ? engine.kv_len(*request.seq) : 0;
  return std::min<uint64_t>(begin + prompt_tokens + request.max_new_tokens,
                            engine.geometry(request.strategy).max_context);
}

void Scheduler::Impl::check(const Request& request, const std::vector<TokenId>& prompt) const {
  if (prompt.empty() && request.logits.empty())
    throw input_error("the prompt is empty: give at least one token");
  if (!request.logits.empty() && (!prompt.empty() || !request.seq))
    throw Error(ErrorKind::kInternal,
                "a request with logits goes on with a sequence, without a prompt");
  for (const auto& [id, job] : schedule.jobs)
    if (request.seq && job->request.seq == request.seq && !job->has_ended)
      throw Error(ErrorKind::kInternal, "sequence " + std::to_string(*request.seq) +
                                            " belongs to request " + std::to_string(id));
  const uint64_t begin = request.seq ? engine.kv_len(*request.seq) : 0;
  const uint32_t context = engine.geometry(request.strategy).max_context;
  if (begin + prompt.size() > context)
    throw input_error("the prompt needs " + std::to_string(begin + prompt.size()) +
                      " tokens of context, but -c gives " + std::to_string(context) +
                      ": raise -c or shorten the prompt");
  const uint64_t bytes = engine.sequence_bytes(
      request.strategy, static_cast<uint32_t>(total_tokens(request, prompt.size())));
  if (bytes > memory.limit())
    throw Error(ErrorKind::kResource,
                "the request needs " + std::to_string(bytes >> 20) + " MiB for " +
                    std::to_string(total_tokens(request, prompt.size())) + " tokens under " +
                    engine.pipeline(request.strategy).strategy.name + ", and " +
                    std::to_string(memory.limit() >> 20) +
                    " MiB are there for all sequences: shorten the prompt or the answer");
}

Job& Scheduler::Impl::add(Request request) {
  auto job = std::make_unique<Job>();
  job->id = next_id++;
  job->request = std::move(request);
  job->submitted = Clock::now();
  Job& made = *job;
  schedule.jobs[made.id] = std::move(job);
  return made;
}

// Own and shared bytes of the members, for what the group has read and will read together.
void Scheduler::Impl::count_memory(PromptGroup& group) const {
  const auto prompt_tokens = static_cast<uint32_t>(group.prompt.size());
  group.shared_bytes = 0;
  for (Job* job : group.members) {
    const auto total = static_cast<uint32_t>(total_tokens(job->request, prompt_tokens));
    const uint64_t whole = engine.sequence_bytes(job->request.strategy, total);
    job->own_bytes = group.members.size() == 1
                         ? whole
                         : engine.sequence_bytes(job->request.strategy, total, prompt_tokens);
    group.shared_bytes = std::max(group.shared_bytes, whole - job->own_bytes);
  }
}

uint64_t Scheduler::Impl::bytes_of(const PromptGroup& group) const {
  uint64_t bytes = group.shared_bytes;
  for (const Job* job : group.members) bytes += job->own_bytes;
  return bytes;
}

// Whether the job can read its prompt with the group, and the group as a whole still enter once.
bool Scheduler::Impl::joins(const PromptGroup& group, const Job& job) const {
  if (group.members.size() >= max_sequences ||
      !engine.can_follow(group.members[0]->request.strategy, job.request.strategy))
    return false;
  const std::vector<Job*>& members = group.members;
  return std::none_of(members.begin(), members.end(), [&](const Job* member) {
    return member->request.strategy == job.request.strategy;
  });
}

RequestId Scheduler::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return submit_together(std::move(one))[0];
}

std::vector<RequestId> Scheduler::submit_together(std::vector<Request> requests) {
  Impl& m = *impl_;
  if (requests.empty()) return {};
  const std::vector<TokenId> prompt = std::move(requests[0].prompt);
  for (const Request& request : requests) {
    m.check(request, prompt);
    if (requests.size() > 1 && request.seq)
      throw Error(ErrorKind::kInternal, "requests that share a prompt begin with it");
  }
  std::vector<RequestId> ids;
  std::vector<std::shared_ptr<PromptGroup>> groups;
  for (Request& request : requests) {
    Job& job = m.add(std::move(request));
    ids.push_back(job.id);
    job.status.prompt_tokens = static_cast<uint32_t>(prompt.size());
    for (const auto& group : groups) {
      if (!m.joins(*group, job)) continue;
      group->members.push_back(&job);
      m.count_memory(*group);
      if (m.bytes_of(*group) <= m.memory.limit()) {
        job.group = group;
        break;
      }
      group->members.pop_back();
      m.count_memory(*group);
    }
    if (job.group) continue;
    job.group = groups.emplace_back(std::make_shared<PromptGroup>());
    job.group->members = {&job};
    job.group->prompt = prompt;
    job.group->piece_tokens = piece_tokens(job.request.strategy);
    m.count_memory(*job.group);
  }
  m.schedule.queue.insert(m.schedule.queue.end(), groups.begin(), groups.end());
  return ids;
}

uint32_t Scheduler::piece_tokens(StrategyId strategy) const {
  const uint32_t chunk = impl_->engine.pipeline(strategy).strategy.cache.chunk_size.value;
  // What the others leave when all of them decode.
  return std::clamp(chunk, 1u, impl_->max_step_tokens - (impl_->max_sequences - 1));
}

void Scheduler::cancel(RequestId id) {
  Job* job = impl_->schedule.find(id);
  if (!job) return;
  job->is_cancelled = true;
  if (!impl_->in_step) impl_->settle();
}

void Scheduler::pause(RequestId id) {
  Impl& m = *impl_;
  if (m.in_step) return void(m.pauses.emplace_back(id, true));
  Job* job = m.schedule.find(id);
  if (!job || job->status.is_paused) return;
  job->status.is_paused = true;
  if (job->status.state == RequestState::kDecoding) return;
  const uint64_t before = job->own_bytes;
  m.schedule.split(*job);
  m.count_memory(*job->group);
  if (job->status.state == RequestState::kPrefilling) m.memory.take(job->own_bytes - before);
  job->group->is_paused = true;
  std::erase(m.schedule.reading, job->group);
}

void Scheduler::resume(RequestId id) {
  Impl& m = *impl_;
  if (m.in_step) return void(m.pauses.emplace_back(id, false));
  Job* job = m.schedule.find(id);
  if (!job || !job->status.is_paused) return;
  job->status.is_paused = job->group->is_paused = false;
  if (job->status.state == RequestState::kPrefilling) m.schedule.reading.push_back(job->group);
}

void Scheduler::close(SequenceId kept) {
  impl_->engine.close(kept);
  impl_->memory.let_go(kept);
}

const RequestStatus* Scheduler::find(RequestId id) const {
  const Job* job = impl_->schedule.find(id);
  return job ? &job->status : nullptr;
}

size_t Scheduler::n_queued() const {
  size_t n = 0;
  for (const auto& group : impl_->schedule.queue) n += group->members.size();
  return n;
}
size_t Scheduler::n_running() const { return impl_->n_running; }
uint64_t Scheduler::memory_used() const { return impl_->memory.used(); }

// ---- a step ----

bool Scheduler::Impl::fits(const PromptGroup& group) const {
  if (n_running + group.members.size() > max_sequences) return false;
  const auto& seq = group.members[0]->request.seq;
  const uint64_t bytes = bytes_of(group), held = seq ? memory.held(*seq) : 0;
  return memory.fits(bytes - std::min(bytes, held));
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

void Scheduler::Impl::enter(PromptGroup& group) {
  memory.take(group.shared_bytes);
  for (Job* job : std::vector<Job*>(group.members)) {
    ++n_running;
    if (job->request.seq) memory.let_go(*job->request.seq);
    memory.take(job->own_bytes);
    job->status.queued_nanos = nanos_since(job->submitted);
    job->status.state = RequestState::kPrefilling;
    try {
      job->status.seq = job->request.seq ? *job->request.seq : engine.open(job->request.strategy);
      if (!group.prompt.empty())
        engine.begin_prompt(job->status.seq, static_cast<uint32_t>(group.prompt.size()));
    } catch (const std::exception&) {
      end(*job, RequestState::kFailed, std::current_exception());
      continue;
    }
    if (!group.prompt.empty()) continue;
    job->status.state = RequestState::kDecoding;
    schedule.decoding.push_back(job);
    advance(*job, job->request.logits);
  }
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
    const auto begin = Clock::now();
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
  for (const auto& [id, is_pause] : std::exchange(m.pauses, {})) is_pause ? pause(id) : resume(id);
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
      read_anew(job);
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
  job.status.prompt_done = job.group->read = 0;
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
    if (job.group->members.empty()) memory.give(job.group->shared_bytes);
  }
  job.status.state = state;
  job.status.error = std::move(error);
  job.status.is_paused = false;
  SequenceId& seq = job.status.seq;
  if (!has_entered && job.request.seq) {
    seq = *job.request.seq;
    memory.let_go(seq);
  }
  if (seq != 0 && job.request.keep && !is_lost) {
    if (engine.prompt_left(seq) > 0) engine.end_prompt(seq);
    memory.hold(seq, engine.sequence_bytes(job.request.strategy, engine.kv_len(seq)));
  } else if (seq != 0) {
    engine.close(seq);
    seq = 0;
  }
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
