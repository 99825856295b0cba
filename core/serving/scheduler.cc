// What is asked of the scheduler; see scheduler.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/serving/scheduler_impl.h"

namespace kvasir {

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}

Scheduler::~Scheduler() {
  for (auto& [id, job] : impl_->schedule.jobs) {
    const SequenceId queued = job->request.keep ? 0 : job->request.seq.value_or(0);
    const SequenceId seq = job->status.seq ? job->status.seq : queued;
    if (seq != 0) impl_->engine.close(seq);
  }
}

uint32_t Scheduler::Impl::first_tokens(const Request& request) const {
  return request.seq ? engine.kv_len(*request.seq) : 0;
}

uint32_t Scheduler::Impl::total_tokens(const Request& request, uint32_t first,
                                       size_t prompt_tokens) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{first} + prompt_tokens + request.max_new_tokens,
                         engine.geometry(request.strategy).max_context));
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
  const uint32_t begin = first_tokens(request);
  const uint32_t context = engine.geometry(request.strategy).max_context;
  if (uint64_t{begin} + prompt.size() > context)
    throw input_error("the prompt needs " + std::to_string(begin + prompt.size()) +
                      " tokens of context, but -c gives " + std::to_string(context) +
                      ": raise -c or shorten the prompt");
  const uint32_t total = total_tokens(request, begin, prompt.size());
  const MemoryBytes bytes = engine.sequence_bytes(request.strategy, total);
  if (bytes.fits(memory.limit())) return;
  const bool of_main = bytes.main > memory.limit().main;
  const auto mebibytes = [&](const MemoryBytes& b) {
    return std::to_string((of_main ? b.main : b.device) >> 20) + " MiB";
  };
  throw Error(ErrorKind::kResource,
              "the request needs " + mebibytes(bytes) + (of_main ? "" : " of the device's memory") +
                  " for " + std::to_string(total) + " tokens under " +
                  engine.pipeline(request.strategy).strategy.name + ", and " +
                  mebibytes(memory.limit()) +
                  " are there for all sequences: shorten the prompt or the answer");
}

Job& Scheduler::Impl::add(Request request) {
  auto job = std::make_unique<Job>();
  job->id = next_id++;
  job->request = std::move(request);
  job->submitted = std::chrono::steady_clock::now();
  Job& made = *job;
  made.first_tokens = first_tokens(made.request);
  if (made.request.seq) made.shared_tokens = memory.held(*made.request.seq).shared_tokens;
  schedule.jobs[made.id] = std::move(job);
  return made;
}

// Own and shared bytes of the members, for what the group has read and will read together.
void Scheduler::Impl::count_memory(PromptGroup& group) const {
  const auto prompt_tokens = static_cast<uint32_t>(group.prompt.size());
  group.shared_bytes = {};
  for (Job* job : group.members) {
    const uint32_t total = total_tokens(job->request, job->first_tokens, prompt_tokens);
    const bool is_alone = group.members.size() == 1;
    if (!job->request.seq) job->shared_tokens = is_alone ? 0 : prompt_tokens;
    job->own_bytes = engine.sequence_bytes(job->request.strategy, total, job->shared_tokens);
    if (is_alone) continue;
    const MemoryBytes whole = engine.sequence_bytes(job->request.strategy, total);
    group.shared_bytes = largest(group.shared_bytes, whole - job->own_bytes);
  }
}

MemoryBytes Scheduler::Impl::bytes_of(const PromptGroup& group) const {
  MemoryBytes bytes = group.shared_bytes;
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
      if (m.bytes_of(*group).fits(m.memory.limit())) {
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
  if (impl_->in_step) return;
  impl_->settle();
  carry_out_pauses();
}

void Scheduler::carry_out_pauses() {
  for (const auto& [id, is_pause] : std::exchange(impl_->pauses, {}))
    is_pause ? pause(id) : resume(id);
}

void Scheduler::pause(RequestId id) {
  Impl& m = *impl_;
  if (m.in_step) return void(m.pauses.emplace_back(id, true));
  Job* job = m.schedule.find(id);
  if (!job || job->status.is_paused) return;
  job->status.is_paused = true;
  if (job->status.state == RequestState::kDecoding) return;
  const MemoryBytes before = job->own_bytes;
  m.schedule.split(*job);
  m.count_memory(*job->group);
  if (job->status.state == RequestState::kPrefilling) {
    m.memory.give(before);
    m.memory.take(job->own_bytes);
    if (!job->request.seq) job->shared.reset();
  }
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
MemoryBytes Scheduler::memory_used() const { return impl_->memory.used(); }

}  // namespace kvasir
