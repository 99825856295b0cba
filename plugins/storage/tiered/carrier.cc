// See carrier.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/carrier.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr auto kLongest = std::chrono::seconds(30);  // that a caller waits
constexpr size_t kMostSaves = 64;                    // blocks that Work is asked to take down

}  // namespace

Carrier::~Carrier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_to_do_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Carrier::start() {
  thread_ = std::thread([this] { serve(); });
}

void Carrier::load(uint64_t ticket, std::vector<Request> requests, bool is_urgent) {
  add({ticket, is_urgent, std::move(requests)});
}

std::vector<Request> Carrier::load_now(std::vector<Request> requests) {
  const auto waiter = std::make_shared<std::promise<std::vector<Request>>>();
  auto done = waiter->get_future();
  add({0, true, std::move(requests), waiter});
  if (done.wait_for(kLongest) == std::future_status::ready) return done.get();
  const std::lock_guard lock(mutex_);
  for (Job& job : urgent_) job.cancelled |= job.waiter == waiter;
  return {};
}

void Carrier::add(Job job) {
  job.status.resize(job.requests.size());
  const std::lock_guard lock(mutex_);
  (job.is_urgent ? urgent_ : foreseen_).push_back(std::move(job));
  something_to_do_.notify_all();
}

void Carrier::save(std::span<const uint64_t> handles) {
  const std::lock_guard lock(mutex_);
  saves_.insert(saves_.end(), handles.begin(), handles.end());
  something_to_do_.notify_all();
}

void Carrier::wait_for_saves(size_t n) {
  std::unique_lock lock(mutex_);
  saved_.wait_for(lock, kLongest, [&] { return saves_.size() <= n; });
}

void Carrier::cancel(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled |= !job.waiter && job.ticket == ticket;
}

void Carrier::drain(uint64_t deadline_ms) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return urgent_.empty() && foreseen_.empty() && !reporting_; };
  if (idle_.wait_for(lock, std::chrono::milliseconds(deadline_ms), done)) return;
  for (Jobs* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled = true;
  idle_.wait(lock, done);
}

void Carrier::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!urgent_.empty())
      go_on(urgent_, lock);
    else if (!foreseen_.empty())
      go_on(foreseen_, lock);
    else if (stopping_)
      return;
    else if (!saves_.empty())
      go_on_saving(lock);
    else
      something_to_do_.wait(lock);
  }
}

void Carrier::go_on(Jobs& queue, std::unique_lock<std::mutex>& lock) {
  Job& job = queue.front();
  const std::span<Request> rest = std::span(job.requests).subspan(job.n_done);
  if (job.cancelled || stopping_) {
    for (Request& request : rest) request.status = KVASIR_ERR_CANCELLED;
    job.n_done = job.requests.size();
  } else if (!rest.empty()) {
    lock.unlock();
    const size_t n = work_.load(rest, job.is_urgent);
    lock.lock();
    job.n_done += n;
  }
  if (job.n_done < job.requests.size()) return;
  Job done = std::move(job);
  queue.pop_front();
  report(std::move(done), lock);
}

void Carrier::go_on_saving(std::unique_lock<std::mutex>& lock) {
  std::array<uint64_t, kMostSaves> handles{};
  const size_t n_next = std::min(saves_.size(), handles.size());
  std::copy_n(saves_.begin(), n_next, handles.begin());
  lock.unlock();
  const size_t n = work_.save(std::span(handles).first(n_next));
  lock.lock();
  saves_.erase(saves_.begin(), saves_.begin() + static_cast<ptrdiff_t>(n));
  saved_.notify_all();
}

void Carrier::report(Job job, std::unique_lock<std::mutex>& lock) {
  if (job.waiter) {
    job.waiter->set_value(std::move(job.requests));
    return idle_.notify_all();
  }
  kvasir_status whole = KVASIR_OK;
  uint64_t n_bytes = 0;
  for (size_t i = 0; i < job.requests.size(); ++i) {
    job.status[i] = job.requests[i].status;
    if (job.status[i] != KVASIR_OK) whole = job.status[i];
    n_bytes += job.requests[i].n_bytes;
  }
  reporting_ = true;
  lock.unlock();
  completion_->complete(completion_->self, job.ticket, whole, job.status.data(),
                        static_cast<uint32_t>(job.status.size()), n_bytes);
  lock.lock();
  reporting_ = false;
  idle_.notify_all();
}

}  // namespace kvasir::tiered
