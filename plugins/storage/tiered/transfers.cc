// See transfers.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/transfers.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr size_t kMostSaves = 8;          // begun and not ended
constexpr kvasir_status kUnderWay = 100;  // has not ended; no call's status

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

LoadJob job_of(uint64_t ticket, std::vector<Load> loads) {
  LoadJob job;
  job.ticket = ticket;
  job.status.resize(loads.size());
  job.again.reserve(loads.size());
  for (size_t load = loads.size(); load-- > 0;) job.open.push_back(load);
  job.loads = std::move(loads);
  return job;
}

}  // namespace

Transfers::~Transfers() { stop(); }

void Transfers::start(std::unique_ptr<FileIo> io, uint32_t n_files) {
  moves_.emplace(std::move(io), n_files);
  flow_.resize(n_files);
  thread_ = std::thread([this] { serve(); });
}

void Transfers::load(uint64_t ticket, std::vector<Load> loads, bool is_urgent) {
  add(job_of(ticket, std::move(loads)), is_urgent);
}

void Transfers::load_now(std::vector<Load> loads) { wait_for(job_of(0, std::move(loads))); }

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
  if (LoadJob* job = next_job()) {
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

LoadJob* Transfers::next_job() {
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (LoadJob& job : *queue)
      if (!job.open.empty()) return &job;
  return nullptr;
}

void Transfers::begin_load(LoadJob& job, std::unique_lock<std::mutex>& lock) {
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
    auto& job = *static_cast<LoadJob*>(entry.tag);
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
  for_each_job([](LoadJob& job) {
    job.open.insert(job.open.end(), job.again.rbegin(), job.again.rend());
    job.again.clear();
  });
}

void Transfers::end_load(LoadJob& job, size_t load, kvasir_status status,
                         std::unique_lock<std::mutex>& lock) {
  job.status[load] = status;
  if (++job.n_ended < job.loads.size()) return;
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (auto at = queue->begin(); at != queue->end(); ++at) {
      if (&*at != &job) continue;
      const LoadJob done = std::move(job);
      queue->erase(at);
      return report(done, {}, done.bytes, lock);
    }
}

FlowCounts Transfers::flow(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return flow_[file];
}

}  // namespace kvasir::tiered
