// One block of threads on the host: each thread a fibre that runs until it has to wait for others.
// Threads run in the order of their numbers, so a run is the same every time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/emulation/memory.h"
#include "kernels/cuda/emulation/pending_products.h"
#include "kernels/cuda/emulation/phases.h"

namespace kvasir::cuda::emulation {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kGroupSize = 128;  // threads that make a product of panels together
inline constexpr uint32_t kMostThreads = 1024;
inline constexpr uint64_t kMostSharedBytes = uint64_t{227} << 10;  // of sm_90
using Site = std::source_location;

struct Index2 {
  uint32_t x = 1, y = 1;
};

// What the threads of a warp come together for. Lanes meet only in the same operation at the same
// place with the same mask.
enum class Meeting { kBarrier, kExchange };

class Block {
 public:
  // The block whose thread is running on this thread of the host; null outside of a launch.
  static Block* running();

  Block(Index2 grid, Index2 index, uint32_t n_threads, uint64_t shared_bytes, uint64_t launch);
  ~Block();
  Block(const Block&) = delete;

  // Runs `kernel` once per thread. Throws the first Fault, or what the kernel throws, once every
  // thread has been unwound.
  void run(const std::function<void()>& kernel);

  // ---- for the running thread ----
  Index2 grid() const { return grid_; }
  Index2 index() const { return index_; }
  uint32_t n_threads() const { return static_cast<uint32_t>(threads_.size()); }
  uint32_t thread() const { return now_; }
  const Moment& moment() const { return threads_[now_].moment; }
  // ", thread 3 last waited at file:line", for messages; empty before the first wait.
  std::string since() const;

  void barrier(Site site);
  // Waits for the lanes of `mask`; a barrier orders their memory accesses, an exchange does not.
  // `value` goes to exchanged().
  void meet(Meeting meeting, uint32_t mask, uint64_t value, Site site);
  // Waits for all threads [128 n, 128 (n + 1)) that the running one is of; orders nothing. All
  // bring the same value.
  void meet_group(uint64_t value, Site site);
  // What a lane brought to the meeting that this thread has just left.
  uint64_t exchanged(uint32_t lane) const;
  // What all lanes brought, whom its mask names.
  const std::array<uint64_t, kWarpSize>& exchanged() const;

  // Asynchronous work of the running thread: in groups, done when they are waited for.
  void later(std::function<void()> work) { self().open_group.push_back(std::move(work)); }
  void close_group();
  void finish_groups(uint64_t n_left);  // all but the last n_left

  PendingProducts& products() { return self().products; }
  Phases& phases() { return phases_; }
  void wait_for_phase(const void* barrier, uint32_t parity, Site site);
  void arrive(const void* barrier);
  void fence_async() { self().fences.push_back(moment()); }
  uint32_t n_fences() const { return static_cast<uint32_t>(threads_[now_].fences.size()); }

  // Arrays of shared memory in the order in which each thread asks for them; all ask alike.
  Region& dynamic_array(uint32_t i, uint64_t bytes, uint64_t alignment = 16);
  Region& static_array(Site site, uint64_t bytes);

  // ---- for the checker ----
  uint64_t run_of_launch() const { return launch_; }
  uint64_t run_of_block() const { return run_; }
  // Whether a barrier of phases may order threads of unlike warps.
  bool has_arrivals() const { return phases_.are_used(); }
  bool is_ordered(const Moment& earlier) const;  // before the running thread, by barriers
  bool is_fenced(const History& written) const;  // for tensor cores

 private:
  enum class State { kReady, kAtBarrier, kAtMeeting, kAtGroup, kAtPhase, kDone };
  struct Thread {
    State state = State::kReady;
    Moment moment;
    Site site;  // where it waits, or waited last
    bool has_waited = false;
    Meeting meeting{};
    uint32_t mask = 0;
    uint64_t value = 0;
    const void* barrier = nullptr;  // whose phase it waits for
    uint32_t parity = 0;
    std::vector<Moment> fences;
    PendingProducts products;
    // Lane by lane: the clock up to which its accesses come before this thread's.
    std::array<uint32_t, kWarpSize> seen{};
    Clocks known;  // the same of all threads, by what they said at barriers of phases
    using Group = std::vector<std::function<void()>>;
    Group open_group;
    std::list<Group> groups;  // takes no memory while it is empty
  };
  struct SharedArray {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<Region> region;
    Site site;
  };
  struct Cancelled {};  // unwinds the other threads after a fault

  void enter(uint32_t thread, const std::function<void()>& kernel);
  void wait(State state, Site site);
  void suspend_until_ready();
  void release_barrier();
  void release_meeting(uint32_t first, uint32_t mask);
  void share_known(uint32_t lane_0, uint32_t mask);
  bool has_met(uint32_t first, uint32_t mask) const;
  void step_all();
  [[noreturn]] void fail_stuck() const;
  void fail_without_phase() const;
  void fail_without_group() const;
  std::string waits_at(uint32_t thread) const;
  SharedArray make_array(uint64_t bytes, uint64_t alignment, Site site) const;
  Thread& self() { return threads_[now_]; }

  Index2 grid_, index_;
  uint64_t launch_, run_;
  uint64_t shared_bytes_, shared_used_ = 0;
  std::vector<Thread> threads_;
  uint32_t now_ = 0;
  uint32_t n_at_barrier_ = 0;
  bool is_cancelled_ = false;
  std::exception_ptr error_;
  std::deque<SharedArray> dynamic_, static_;
  Phases phases_;
  // Per warp, what its lanes brought to their latest meeting.
  std::vector<std::array<uint64_t, kWarpSize>> values_;
};

inline bool Block::is_ordered(const Moment& earlier) const {
  const Moment& now = moment();
  if (earlier.block != now.block) return false;
  if (earlier.thread == now.thread || earlier.epoch < now.epoch) return true;
  const Clocks& known = threads_[now_].known;
  if (earlier.thread < known.size() && earlier.clock < known[earlier.thread]) return true;
  if (earlier.thread / kWarpSize != now.thread / kWarpSize) return false;
  return earlier.clock < threads_[now_].seen[earlier.thread % kWarpSize];
}

inline bool Block::is_fenced(const History& written) const {
  const std::vector<Moment>& fences = threads_[written.writer.thread].fences;
  return written.n_fences < fences.size() && is_ordered(fences[written.n_fences]);
}

// A number for each launch, never used again.
uint64_t next_run();
// While it lives, no other thread of the host launches anything.
std::unique_lock<std::mutex> hold_device();

}  // namespace kvasir::cuda::emulation
