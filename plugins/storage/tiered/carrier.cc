// See carrier.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/carrier.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr size_t kMostSaves = 64;  // blocks that Work is asked to take down

CarrierJob job_of(uint64_t ticket, std::vector<Request> requests) {
  CarrierJob job;
  job.ticket = ticket;
  job.status.resize(requests.size());
  job.requests = std::move(requests);
  return job;
}

}  // namespace

Carrier::~Carrier() { stop(); }

void Carrier::start() {
  thread_ = std::thread([this] { serve(); });
}

void Carrier::load(uint64_t ticket, std::vector<Request> requests, bool is_urgent) {
  add(job_of(ticket, std::move(requests)), is_urgent);
}

std::vector<Request> Carrier::load_now(std::vector<Request> requests) {
  return wait_for(job_of(0, std::move(requests))).value_or(std::vector<Request>());
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
  CarrierJob& job = queue.front();
  const std::span<Request> rest = std::span(job.requests).subspan(job.n_done);
  if (job.cancelled || stopping_) {
    for (Request& request : rest) request.status = KVASIR_ERR_CANCELLED;
    job.n_done = job.requests.size();
  } else if (!rest.empty()) {
    lock.unlock();
    const size_t n = work_.load(rest, &queue == &urgent_);
    lock.lock();
    job.n_done += n;
  }
  if (job.n_done < job.requests.size()) return;
  CarrierJob done = std::move(job);
  queue.pop_front();
  uint64_t n_bytes = 0;
  for (size_t i = 0; i < done.requests.size(); ++i) {
    done.status[i] = done.requests[i].status;
    n_bytes += done.requests[i].n_bytes;
  }
  report(done, std::move(done.requests), n_bytes, lock);
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

}  // namespace kvasir::tiered
