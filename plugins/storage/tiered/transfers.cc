// See transfers.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/transfers.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr auto kLongest = std::chrono::seconds(30);  // that a caller waits
constexpr size_t kMostSaves = 8;                     // begun and not ended
constexpr kvasir_status kUnderWay = 100;             // has not ended; no call's status

template <class Call>
kvasir_status call(const Call& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return KVASIR_ERR_OUT_OF_MEMORY;
  } catch (...) {
    return KVASIR_ERR_IO;
  }
}

}  // namespace

Transfers::~Transfers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_to_do_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Transfers::start(std::unique_ptr<FileIo> io, uint32_t n_files) {
  moves_.emplace(std::move(io), n_files);
  flow_.resize(n_files);
  thread_ = std::thread([this] { serve(); });
}

void Transfers::load(uint64_t ticket, std::vector<Load> loads, bool is_urgent) {
  add(is_urgent ? urgent_ : foreseen_, {ticket, std::move(loads)});
}

bool Transfers::load_now(std::vector<Load> loads) {
  const auto waiter = std::make_shared<std::promise<void>>();
  std::future<void> done = waiter->get_future();
  add(urgent_, {0, std::move(loads), waiter});
  if (done.wait_for(kLongest) == std::future_status::ready) return true;
  const std::lock_guard lock(mutex_);
  for (Job& job : urgent_) job.cancelled |= job.waiter == waiter;
  return false;
}

void Transfers::add(Jobs& queue, Job job) {
  const size_t n = job.loads.size();
  job.status.resize(n);  // the thread must not fail at it
  job.again.reserve(n);
  for (size_t load = n; load-- > 0;) job.open.push_back(load);
  const std::lock_guard lock(mutex_);
  queue.push_back(std::move(job));
  something_to_do_.notify_all();
}

void Transfers::save(std::span<const uint64_t> handles) {
  const std::lock_guard lock(mutex_);
  saves_.insert(saves_.end(), handles.begin(), handles.end());
  something_to_do_.notify_all();
}

void Transfers::wait_for_saves(size_t n) {
  std::unique_lock lock(mutex_);
  saved_.wait_for(lock, kLongest, [&] { return saves_.size() <= n; });
}

void Transfers::cancel(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled |= job.ticket == ticket;
}

void Transfers::drain(uint64_t deadline_ms) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return urgent_.empty() && foreseen_.empty() && !reporting_; };
  if (idle_.wait_for(lock, std::chrono::milliseconds(deadline_ms), done)) return;
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled = true;
  idle_.wait(lock, done);
}

void Transfers::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (begin_next(lock)) continue;
    if (!moves_->empty()) {
      end_moves(lock);
    } else if (stopping_) {
      return;
    } else {
      something_to_do_.wait(lock, [&] { return stopping_ || next_job() || !saves_.empty(); });
    }
  }
}

bool Transfers::begin_next(std::unique_lock<std::mutex>& lock) {
  if (Job* job = next_job()) {
    const bool is_cancelled = job->cancelled || stopping_;
    if (!is_cancelled && !moves_->takes(false)) return false;
    begin_load(*job, lock);
    return true;
  }
  if (saves_.empty() || stopping_ || begun_saves_.size() >= kMostSaves || !moves_->takes(true))
    return false;
  begin_save(lock);
  return true;
}

Transfers::Job* Transfers::next_job() {
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue)
      if (!job.open.empty()) return &job;
  return nullptr;
}

void Transfers::begin_load(Job& job, std::unique_lock<std::mutex>& lock) {
  const size_t load = job.open.back();
  job.open.pop_back();
  kvasir_status status = KVASIR_ERR_CANCELLED;
  if (!job.cancelled && !stopping_) {
    lock.unlock();
    status = call([&] {
      std::list<MoveQueue::Entry> one(1);
      Work::Begun begun = work_.begin_load(job.loads[load]);
      if (!begun.reading) return begun.status;
      one.front() = {std::move(begun.reading), &job, load, false, 0, 0};
      moves_->add(std::move(one));
      return kUnderWay;
    });
    lock.lock();
  }
  if (status == KVASIR_AGAIN)
    job.again.push_back(load);
  else if (status != kUnderWay)
    end_load(job, load, status, lock);
}

void Transfers::begin_save(std::unique_lock<std::mutex>& lock) {
  const uint64_t handle = saves_.front();
  saves_.pop_front();
  saved_.notify_all();
  lock.unlock();
  call([&] {
    std::list<Save> one(1);
    one.front().steps.push_back({.handle = handle});
    begun_saves_.splice(begun_saves_.end(), one);
    go_on(begun_saves_.back());
    return KVASIR_OK;
  });
  go_on_waiting();
  lock.lock();
}

void Transfers::go_on(Save& save) {
  save.waits = false;
  const kvasir_status status = call([&] {
    std::list<MoveQueue::Entry> one(1);
    std::unique_ptr<Move> move = work_.next_move(save);
    if (!move) return KVASIR_OK;
    one.front() = {std::move(move), &save, 0, true, 0, 0};
    moves_->add(std::move(one));
    return kUnderWay;
  });
  if (status == kUnderWay || (status == KVASIR_OK && save.waits)) return;
  if (status != KVASIR_OK) work_.give_up(save);
  begun_saves_.remove_if([&](const Save& other) { return &other == &save; });
}

// Those for which nobody is left to wait are given up, one at a time: that may help the others.
void Transfers::go_on_waiting() {
  for (bool again = true; std::exchange(again, false);) {
    for (auto at = begun_saves_.begin(); at != begun_saves_.end();) {
      Save& save = *at++;
      if (save.waits) go_on(save);
    }
    const auto waits = [](const Save& save) { return save.waits; };
    if (begun_saves_.empty() || !std::all_of(begun_saves_.begin(), begun_saves_.end(), waits))
      return;
    work_.give_up(begun_saves_.front());
    begun_saves_.pop_front();
    again = true;
  }
}

void Transfers::end_moves(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  moves_->wait();
  lock.lock();
  while (begin_next(lock)) continue;  // the disk reads on while this thread unpacks
  lock.unlock();
  std::list<MoveQueue::Entry> ended = moves_->finish();
  lock.lock();
  for (uint32_t file = 0; file < flow_.size(); ++file) flow_[file] = moves_->flow(file);
  lock.unlock();
  for (MoveQueue::Entry& entry : ended) {
    if (entry.is_save) {
      Save& save = *static_cast<Save*>(entry.tag);
      call([&] {
        work_.end_move(save, *entry.move);
        return KVASIR_OK;
      });
      go_on(save);
      continue;
    }
    auto& job = *static_cast<Job*>(entry.tag);
    auto& reading = static_cast<Reading&>(*entry.move);
    const kvasir_status status =
        call([&] { return work_.end_load(job.loads[entry.index].handle, reading); });
    lock.lock();
    job.bytes += reading.bytes();
    end_load(job, entry.index, status, lock);
    lock.unlock();
  }
  go_on_waiting();
  lock.lock();
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) {
      job.open.insert(job.open.end(), job.again.rbegin(), job.again.rend());
      job.again.clear();
    }
}

void Transfers::end_load(Job& job, size_t load, kvasir_status status,
                         std::unique_lock<std::mutex>& lock) {
  job.status[load] = status;
  if (++job.n_ended < job.loads.size()) return;
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (auto at = queue->begin(); at != queue->end(); ++at) {
      if (&*at != &job) continue;
      Job done = std::move(job);
      queue->erase(at);
      return report(std::move(done), lock);
    }
}

void Transfers::report(Job job, std::unique_lock<std::mutex>& lock) {
  if (job.waiter) {
    job.waiter->set_value();
    return idle_.notify_all();
  }
  kvasir_status whole = KVASIR_OK;
  for (const kvasir_status one : job.status)
    if (one != KVASIR_OK) whole = one;
  reporting_ = true;
  lock.unlock();
  completion_->complete(completion_->self, job.ticket, whole, job.status.data(),
                        static_cast<uint32_t>(job.status.size()), job.bytes);
  lock.lock();
  reporting_ = false;
  idle_.notify_all();
}

FlowCounts Transfers::flow(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return flow_[file];
}

}  // namespace kvasir::tiered
