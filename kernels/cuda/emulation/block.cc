// Threads as fibres, barriers, meetings of lanes, and who comes before whom; see block.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>

#include "kernels/cuda/emulation/fiber.h"

namespace kvasir::cuda::emulation {
namespace {

constexpr uint64_t kMostAlignment = 1024;  // of shared arrays

thread_local Block* running_block = nullptr;

std::string text(Site site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

bool same_place(Site a, Site b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

}  // namespace

uint64_t next_run() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::unique_lock<std::mutex> hold_device() {
  static std::mutex device;
  return std::unique_lock(device);
}

Block* Block::running() { return running_block; }

Block::Block(Index2 grid, Index2 index, uint32_t n_threads, uint64_t shared_bytes, uint64_t launch)
    : grid_(grid),
      index_(index),
      launch_(launch),
      run_(next_run()),
      shared_bytes_(shared_bytes),
      threads_(n_threads),
      values_((n_threads + kWarpSize - 1) / kWarpSize) {
  for (uint32_t t = 0; t < n_threads; ++t) {
    threads_[t].moment.block = index.y * grid.x + index.x;
    threads_[t].moment.thread = t;
  }
}

Block::~Block() = default;

// ---- running ----

void Block::run(const std::function<void()>& kernel) {
  FiberPool& pool = FiberPool::of_this_thread();
  for (uint32_t t = 0; t < n_threads(); ++t)
    pool.start(t, [this, t, &kernel] { enter(t, kernel); });
  running_block = this;
  try {
    while (std::any_of(threads_.begin(), threads_.end(),
                       [](const Thread& t) { return t.state != State::kDone; })) {
      step_all();
    }
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  is_cancelled_ = true;
  for (uint32_t t = 0; t < n_threads(); ++t) {
    now_ = t;
    if (!pool.ended(t)) pool.resume(t);
  }
  running_block = nullptr;
  if (error_) std::rethrow_exception(error_);
}

// Lets each thread that does not wait run until it does.
void Block::step_all() {
  FiberPool& pool = FiberPool::of_this_thread();
  bool has_moved = false;
  for (uint32_t t = 0; t < n_threads(); ++t) {
    Thread& thread = threads_[t];
    if (thread.state == State::kAtPhase && phases_.is_over(thread.barrier, thread.parity))
      thread.state = State::kReady;
    if (thread.state != State::kReady) continue;
    now_ = t;
    has_moved = true;
    pool.resume(t);
    if (error_) std::rethrow_exception(error_);
  }
  if (!has_moved) fail_stuck();
}

void Block::enter(uint32_t thread, const std::function<void()>& kernel) {
  if (!is_cancelled_) {
    try {
      kernel();
    } catch (const Cancelled&) {
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  threads_[thread].state = State::kDone;
}

void Block::wait(State state, Site site) {
  self().state = state;
  self().site = site;
  self().has_waited = true;
  if (state == State::kAtBarrier) {
    if (n_at_barrier_ == n_threads()) release_barrier();
  } else if (state == State::kAtMeeting && has_met(now_, self().mask)) {
    release_meeting(now_, self().mask);
  }
  suspend_until_ready();  // the last one to arrive goes on at once
}

void Block::suspend_until_ready() {
  while (self().state != State::kReady) {
    FiberPool::of_this_thread().suspend(now_);
    if (is_cancelled_) throw Cancelled{};
  }
}

// ---- barriers ----

void Block::barrier(Site site) {
  ++n_at_barrier_;
  wait(State::kAtBarrier, site);
}

void Block::release_barrier() {
  for (const Thread& t : threads_) {
    if (same_place(t.site, threads_[0].site)) continue;
    throw Fault(FaultKind::kBarrier, "threads of block " + std::to_string(moment().block) +
                                         " wait at different barriers: thread 0 at " +
                                         text(threads_[0].site) + ", thread " +
                                         std::to_string(t.moment.thread) + " at " + text(t.site));
  }
  n_at_barrier_ = 0;
  for (Thread& t : threads_) {
    t.state = State::kReady;
    ++t.moment.epoch;
  }
}

void Block::meet(Meeting meeting, uint32_t mask, uint64_t value, Site site) {
  Thread& t = self();
  if (!(mask >> (now_ % kWarpSize) & 1u)) {
    throw Fault(FaultKind::kWarp, "thread " + std::to_string(now_) + " at " + text(site) +
                                      " is not named in its own mask");
  }
  t.meeting = meeting;
  t.mask = mask;
  t.value = value;
  wait(State::kAtMeeting, site);
}

// Whether every lane of the mask waits where `first` does. Lanes run in order: that somebody is
// missing is seen soonest from behind.
bool Block::has_met(uint32_t first, uint32_t mask) const {
  const Thread& t = threads_[first];
  const uint32_t lane_0 = first - first % kWarpSize;
  for (uint32_t lane = kWarpSize; lane-- > 0;) {
    if (!(mask >> lane & 1u)) continue;
    if (lane_0 + lane >= n_threads()) return false;
    const Thread& other = threads_[lane_0 + lane];
    if (other.state != State::kAtMeeting || other.meeting != t.meeting || other.mask != mask ||
        !same_place(other.site, t.site))
      return false;
  }
  return true;
}

void Block::release_meeting(uint32_t first, uint32_t mask) {
  const uint32_t lane_0 = first - first % kWarpSize;
  std::array<uint64_t, kWarpSize>& values = values_[first / kWarpSize];
  std::array<uint32_t, kWarpSize> seen{};
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    Thread& t = threads_[lane_0 + lane];
    t.state = State::kReady;
    values[lane] = t.value;
    if (t.meeting != Meeting::kBarrier) continue;
    for (uint32_t l = 0; l < kWarpSize; ++l) seen[l] = std::max(seen[l], t.seen[l]);
    seen[lane] = ++t.moment.clock;
  }
  if (threads_[first].meeting != Meeting::kBarrier) return;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane)
    if (mask >> lane & 1u) threads_[lane_0 + lane].seen = seen;
  if (phases_.are_used()) share_known(lane_0, mask);
}

void Block::share_known(uint32_t lane_0, uint32_t mask) {
  Clocks known;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane)
    if (mask >> lane & 1u) merge(threads_[lane_0 + lane].known, known);
  for (uint32_t lane = 0; lane < kWarpSize; ++lane)
    if (mask >> lane & 1u) threads_[lane_0 + lane].known = known;
}

uint64_t Block::exchanged(uint32_t lane) const {
  const Thread& t = threads_[now_];
  if (lane >= kWarpSize || !(t.mask >> lane & 1u)) {
    throw Fault(FaultKind::kWarp, "thread " + std::to_string(now_) + " at " + text(t.site) +
                                      " takes the value of lane " + std::to_string(lane) +
                                      ", which its mask does not name");
  }
  return values_[now_ / kWarpSize][lane];
}

const std::array<uint64_t, kWarpSize>& Block::exchanged() const {
  // Throws for the first lane that the mask does not name.
  if (const uint32_t mask = threads_[now_].mask; ~mask != 0)
    exchanged(static_cast<uint32_t>(std::countr_one(mask)));
  return values_[now_ / kWarpSize];
}

void Block::meet_group(uint64_t value, Site site) {
  const uint32_t first = now_ / kGroupSize * kGroupSize;
  if (first + kGroupSize > n_threads()) {
    throw Fault(FaultKind::kWarp, "thread " + std::to_string(now_) + " at " + text(site) +
                                      " is of no 128 threads that could make a product together");
  }
  const auto group = std::span(threads_).subspan(first, kGroupSize);
  self().state = State::kAtGroup;
  self().value = value;
  self().site = site;
  self().has_waited = true;
  const bool is_last = std::all_of(group.begin(), group.end(), [&](const Thread& t) {
    return t.state == State::kAtGroup && same_place(t.site, site);
  });
  for (Thread& t : group) {
    if (!is_last) break;
    if (t.value != value)
      throw Fault(FaultKind::kWarp, "threads " + std::to_string(now_) + " and " +
                                        std::to_string(t.moment.thread) + " at " + text(site) +
                                        " make a product together, of unlike panels");
    t.state = State::kReady;
  }
  suspend_until_ready();
}

// ---- asynchronous work ----

void Block::wait_for_phase(const void* barrier, uint32_t parity, Site site) {
  Thread& t = self();
  t.site = site;
  t.has_waited = true;
  t.barrier = barrier;
  t.parity = parity;
  if (!phases_.is_over(barrier, parity)) {
    t.state = State::kAtPhase;
    suspend_until_ready();
  }
  merge(phases_.arrived(barrier), t.known);
}

void Block::arrive(const void* barrier) {
  Thread& t = self();
  Clocks known = t.known;
  known.resize(n_threads(), 0);
  const uint32_t lane_0 = now_ - now_ % kWarpSize;
  for (uint32_t lane = 0; lane < kWarpSize && lane_0 + lane < n_threads(); ++lane)
    known[lane_0 + lane] = std::max(known[lane_0 + lane], t.seen[lane]);
  known[now_] = ++t.moment.clock;
  phases_.arrive(barrier, known);
}

void Block::close_group() {
  Thread& t = self();
  t.groups.push_back(std::exchange(t.open_group, {}));
}

void Block::finish_groups(uint64_t n_left) {
  for (std::list<Thread::Group>& groups = self().groups; groups.size() > n_left;) {
    for (const std::function<void()>& work : groups.front()) work();
    groups.pop_front();
  }
}

// ---- messages ----

std::string Block::since() const {
  const Thread& t = threads_[now_];
  return t.has_waited ? "; thread " + std::to_string(now_) + " last waited at " + text(t.site) : "";
}

std::string Block::waits_at(uint32_t thread) const {
  const Thread& t = threads_[thread];
  const std::string who = "thread " + std::to_string(thread);
  if (t.state == State::kDone) return who + " has returned";
  if (t.state == State::kAtBarrier) return who + " waits at the barrier at " + text(t.site);
  if (t.state == State::kAtGroup)
    return who + " waits at " + text(t.site) + " for the others that make a product with it";
  if (t.state == State::kAtPhase) return who + " waits for a phase at " + text(t.site);
  char mask[16];
  std::snprintf(mask, sizeof mask, "%08x", t.mask);
  return who + " waits for the lanes of mask " + mask + " at " + text(t.site);
}

// A phase that never ends is why others wait, too.
void Block::fail_without_phase() const {
  for (const Thread& t : threads_) {
    if (t.state != State::kAtPhase) continue;
    throw Fault(FaultKind::kBarrier, "block " + std::to_string(t.moment.block) + ": " +
                                         waits_at(t.moment.thread) +
                                         ", which never ends: " + phases_.missing(t.barrier));
  }
}

// Names one of the group that does not come.
void Block::fail_without_group() const {
  const auto waits = std::find_if(threads_.begin(), threads_.end(),
                                  [](const Thread& t) { return t.state == State::kAtGroup; });
  if (waits == threads_.end()) return;
  const uint32_t first = waits->moment.thread / kGroupSize * kGroupSize;
  for (uint32_t t = first; t < first + kGroupSize; ++t) {
    if (threads_[t].state == State::kAtGroup && same_place(threads_[t].site, waits->site)) continue;
    throw Fault(FaultKind::kWarp, "block " + std::to_string(waits->moment.block) + ": " +
                                      waits_at(waits->moment.thread) + "; " + waits_at(t));
  }
}

// Nobody can go on: names two threads that wait for one another.
void Block::fail_stuck() const {
  fail_without_phase();
  fail_without_group();
  const auto meets = std::find_if(threads_.begin(), threads_.end(),
                                  [](const Thread& t) { return t.state == State::kAtMeeting; });
  const bool at_meeting = meets != threads_.end();
  const auto first =
      at_meeting ? meets : std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) {
        return t.state == State::kAtBarrier;
      });
  const uint32_t a = first->moment.thread;
  uint32_t b = a;
  for (uint32_t t = 0; t < n_threads(); ++t) {
    const Thread& other = threads_[t];
    const bool is_named =
        at_meeting ? t / kWarpSize == a / kWarpSize && (first->mask >> (t % kWarpSize) & 1u) : true;
    const bool is_with = other.state == first->state && same_place(other.site, first->site) &&
                         (!at_meeting || other.mask == first->mask);
    if (is_named && !is_with) {
      b = t;
      break;
    }
  }
  const std::string what =
      b == a ? " names lanes that the block does not have" : "; " + waits_at(b);
  throw Fault(at_meeting ? FaultKind::kWarp : FaultKind::kBarrier,
              "block " + std::to_string(first->moment.block) + ": " + waits_at(a) + what);
}

// ---- shared memory ----

// No more aligned than is asked for.
Block::SharedArray Block::make_array(uint64_t bytes, uint64_t alignment, Site site) const {
  SharedArray array;
  array.memory = std::make_unique<std::byte[]>(bytes + kMostAlignment + 16);
  auto* data = array.memory.get();
  data += (kMostAlignment - reinterpret_cast<uintptr_t>(data) % kMostAlignment) % kMostAlignment;
  if (alignment < kMostAlignment) data += 16;
  array.region = std::make_unique<Region>(data, bytes, true);
  array.site = site;
  return array;
}

Region& Block::dynamic_array(uint32_t i, uint64_t bytes, uint64_t alignment) {
  if (i < dynamic_.size()) {
    if (dynamic_[i].region->bytes() != bytes)
      throw Fault(FaultKind::kLaunch, "threads of a block take unlike arrays of shared memory");
    return *dynamic_[i].region;
  }
  shared_used_ += (bytes + 15) / 16 * 16 + alignment - 16;  // where it begins is not known
  if (shared_used_ > shared_bytes_) {
    throw Fault(FaultKind::kLaunch, "the kernel takes " + std::to_string(shared_used_) +
                                        " bytes of shared memory, its launch gives it " +
                                        std::to_string(shared_bytes_));
  }
  dynamic_.push_back(make_array(bytes, alignment, {}));
  return *dynamic_.back().region;
}

Region& Block::static_array(Site site, uint64_t bytes) {
  for (SharedArray& array : static_)
    if (same_place(array.site, site)) return *array.region;
  static_.push_back(make_array(bytes, 16, site));
  return *static_.back().region;
}

}  // namespace kvasir::cuda::emulation
