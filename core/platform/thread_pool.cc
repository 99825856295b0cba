// The pool: an epoch word that workers spin on briefly and then sleep on (futex), one region at a
// time, a countdown that the caller waits for in the same way. Who has not begun his share by the
// time the caller is done with his own loses it to the caller: a worker whose core another process
// has is not waited for.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/platform/affinity.h"
#include "core/platform/signal_stack.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxThreads = 4096;
constexpr size_t kCacheLine = 64;

// A sleeping worker of a virtual machine takes 50 us and more to wake, a spinning one below 1 us;
// the serial pieces of a decode step are shorter than the spin. It does not yield: the scheduler
// gives who is runnable his share anyway, and a thread that yields to a busy neighbour is not run
// again before that one's time slice ends, some milliseconds later, for each region anew.
constexpr std::chrono::microseconds kSpinTime{100};
constexpr int kPausesPerClockRead = 16;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Spins until `word` differs from `seen`; false when the time is up.
bool spin_while_equal(const std::atomic<uint32_t>& word, uint32_t seen) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      pause();
    }
    if (Clock::now() - start > kSpinTime) return false;
  }
}

// One word that some threads wait on and another changes. The sleeper announces itself before the
// kernel compares the word, the waker looks for sleepers after changing it (both sequentially
// consistent), so that a wake is never lost and a change nobody sleeps on costs no system call.
struct alignas(kCacheLine) WaitWord {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> n_sleepers{0};

  // Returns once the value was seen to differ from `seen`.
  void wait_while_equal(uint32_t seen, bool spin) {
    if (spin && spin_while_equal(value, seen)) return;
    while (value.load(std::memory_order_acquire) == seen) {
      n_sleepers.fetch_add(1);
      futex_wait(value, seen);
      n_sleepers.fetch_sub(1);
    }
  }
  void wake_sleepers() {
    if (n_sleepers.load() != 0) futex_wake_all(value);
  }
};

// Core of each worker: nodes are filled in proportion to their cores (all of them reached as soon
// as there are as many workers), workers of a node are neighbours.
std::vector<Core> place_workers(const Topology& topology, uint32_t n_workers) {
  const auto& nodes = topology.nodes();
  std::vector<uint32_t> n_of_node(nodes.size(), 0);
  for (uint32_t worker = 0; worker < n_workers; ++worker) {
    size_t best = 0;
    for (size_t node = 1; node < nodes.size(); ++node) {
      // n_of_node / n_cores, compared without division.
      if (uint64_t{n_of_node[node]} * nodes[best].n_cores <
          uint64_t{n_of_node[best]} * nodes[node].n_cores) {
        best = node;
      }
    }
    ++n_of_node[best];
  }
  std::vector<Core> placed;
  const Core* first_core = topology.cores().data();
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (uint32_t i = 0; i < n_of_node[node]; ++i) {
      placed.push_back(first_core[i % nodes[node].n_cores]);
    }
    first_core += nodes[node].n_cores;
  }
  return placed;
}

uint32_t checked_thread_count(const Topology& topology, uint32_t n_threads) {
  if (n_threads > kMaxThreads) {
    throw input_error("a thread pool of " + std::to_string(n_threads) +
                      " threads was asked for; the limit is " + std::to_string(kMaxThreads));
  }
  return n_threads != 0 ? n_threads : static_cast<uint32_t>(topology.cores().size());
}

enum class Split {
  kPieces,     // of `grain` tasks, to whoever is free
  kShares,     // even ones
  kOwnShares,  // even ones, each on its own thread
  kBalanced,   // even ones; who is done takes tasks of his node's workers
};

struct Job {
  const ThreadPool::Body* body = nullptr;
  uint64_t n_tasks = 0;
  uint64_t grain = 0;  // of kPieces
  Split split = Split::kShares;
};

// The latest region whose share of one worker was begun, by that worker or for it. Regions come one
// after the other and each share of each is begun once, so it grows by one per region, and who is
// late by some regions cannot begin any of them.
struct alignas(kCacheLine) Begun {
  std::atomic<uint32_t> region{0};
  bool begin(uint32_t which) {
    uint32_t before = which - 1;
    return region.compare_exchange_strong(before, which);
  }
};

struct Tasks {
  uint64_t begin, end;
};

// Tasks of a balanced share that nobody has begun, below 2^32: the first and, in the lower half of
// the word, the end behind the last.
class alignas(kCacheLine) Share {
 public:
  void set(Tasks tasks) { left_.store(word(tasks), std::memory_order_relaxed); }
  // Of what is left the first quarter, or the last task; empty when nothing is.
  Tasks take_first() {
    return take([](Tasks left) -> Tasks {
      return {left.begin, left.begin + (left.end - left.begin + kParts - 1) / kParts};
    });
  }
  Tasks take_last() {
    return take([](Tasks left) -> Tasks { return {std::max(left.begin, left.end - 1), left.end}; });
  }

 private:
  // An exchange keeps the core from reading ahead: one per task would show.
  static constexpr uint64_t kParts = 4;

  static constexpr uint64_t word(Tasks tasks) { return tasks.begin << 32 | tasks.end; }
  template <class Choose>
  Tasks take(const Choose& choose) {
    uint64_t seen = left_.load(std::memory_order_relaxed);
    for (;;) {
      const Tasks left{seen >> 32, seen & UINT32_MAX};
      if (left.begin == left.end) return left;
      const Tasks taken = choose(left);
      const Tasks rest =
          taken.begin == left.begin ? Tasks{taken.end, left.end} : Tasks{left.begin, taken.begin};
      if (left_.compare_exchange_weak(seen, word(rest), std::memory_order_relaxed)) return taken;
    }
  }

  std::atomic<uint64_t> left_{0};
};

// Which region the current thread is inside of, so that a nested call is recognised.
struct Inside {
  const void* pool = nullptr;
  uint32_t worker = 0;
};
thread_local Inside inside;

// Pools that bound the current thread and still live; the last one sets it free again.
thread_local uint32_t n_pools_binding = 0;

class InsideScope {
 public:
  InsideScope(const void* pool, uint32_t worker) : saved_(inside) { inside = {pool, worker}; }
  ~InsideScope() { inside = saved_; }
  InsideScope(const InsideScope&) = delete;
  InsideScope& operator=(const InsideScope&) = delete;

 private:
  Inside saved_;
};

uint64_t n_pieces(uint64_t n_tasks, uint64_t grain) {
  return n_tasks / grain + (n_tasks % grain != 0 ? 1 : 0);
}

void run_piece(const Job& job, uint64_t piece, uint32_t worker) {
  const uint64_t begin = piece * job.grain;
  const uint64_t end = begin + std::min(job.grain, job.n_tasks - begin);
  (*job.body)(begin, end, worker);
}

void run_serially(const Job& job, uint32_t worker) {
  if (job.split != Split::kPieces) {
    (*job.body)(0, job.n_tasks, worker);
    return;
  }
  const uint64_t n = n_pieces(job.n_tasks, job.grain);
  for (uint64_t piece = 0; piece < n; ++piece) run_piece(job, piece, worker);
}

}  // namespace

struct ThreadPool::Impl {
  std::vector<Core> placed;   // by worker
  std::vector<int> os_nodes;  // by worker; -1: floats over the cores
  bool spin = false;
  bool caller_bound = false;
  std::thread::id owner;
  std::vector<std::thread> threads;

  std::mutex callers;  // one region at a time, whichever thread asks
  WaitWord epoch;      // grows by one per region
  WaitWord pending;    // shares of other workers that are not finished, nor left to the caller
  std::vector<Begun> begun;   // [workers], of 0 unused
  std::vector<Share> shares;  // [workers]
  alignas(kCacheLine) std::atomic<uint64_t> next_piece{0};
  alignas(kCacheLine) std::atomic<bool> failed{false};
  Job job;
  bool stopping = false;  // published by the epoch, as the region is
  std::mutex failure_mutex;
  std::exception_ptr failure;

  uint32_t n_workers() const { return static_cast<uint32_t>(placed.size()); }
  void start_threads(const Topology* bind_to);
  void stop_threads();
  void publish();
  void take_over();
  void worker_loop(uint32_t worker);
  void run_share(uint32_t worker) noexcept;
  Tasks share_of(uint32_t worker) const;
  Tasks next_tasks(uint32_t worker);
  void run_region(const Job& what);
  void run(const Job& what);  // inside a region: serially
};

void ThreadPool::Impl::publish() {
  pending.value.store(static_cast<uint32_t>(threads.size()), std::memory_order_relaxed);
  epoch.value.fetch_add(1);
  epoch.wake_sleepers();
}

void ThreadPool::Impl::worker_loop(uint32_t worker) {
  for (uint32_t seen = 0;;) {
    epoch.wait_while_equal(seen, spin);
    seen = epoch.value.load(std::memory_order_acquire);  // some regions later, maybe
    if (!begun[worker].begin(seen)) continue;
    if (stopping) return;
    run_share(worker);
    if (pending.value.fetch_sub(1) == 1) pending.wake_sleepers();
  }
}

// What others have not begun is done here, as their shares by the calling thread; pieces are done
// already.
void ThreadPool::Impl::take_over() {
  const uint32_t region = epoch.value.load(std::memory_order_relaxed);
  uint32_t n_taken = 0;
  for (uint32_t worker = 1; worker < n_workers(); ++worker) {
    if (!begun[worker].begin(region)) continue;
    ++n_taken;
    if (job.split != Split::kPieces) run_share(worker);
  }
  pending.value.fetch_sub(n_taken);
}

Tasks ThreadPool::Impl::share_of(uint32_t worker) const {
  const uint64_t base = job.n_tasks / n_workers();
  const uint64_t rest = job.n_tasks % n_workers();
  const uint64_t begin = worker * base + std::min<uint64_t>(worker, rest);
  return {begin, begin + base + (worker < rest ? 1 : 0)};
}

// Of a balanced region: the worker's own, then what workers of his node would do last.
Tasks ThreadPool::Impl::next_tasks(uint32_t worker) {
  Tasks tasks = shares[worker].take_first();
  for (uint32_t i = 1; i < n_workers() && tasks.begin == tasks.end; ++i) {
    const uint32_t other = (worker + i) % n_workers();
    if (placed[other].node == placed[worker].node) tasks = shares[other].take_last();
  }
  return tasks;
}

// This worker's part of the current region. An exception ends the part and stops the hand-out of
// pieces; the first one is kept for the caller.
void ThreadPool::Impl::run_share(uint32_t worker) noexcept {
  const InsideScope scope(this, worker);
  try {
    if (job.split == Split::kBalanced) {
      while (!failed.load(std::memory_order_relaxed)) {
        const Tasks tasks = next_tasks(worker);
        if (tasks.begin == tasks.end) return;
        (*job.body)(tasks.begin, tasks.end, worker);
      }
      return;
    }
    if (job.split != Split::kPieces) {
      const auto [begin, end] = share_of(worker);
      if (begin < end) (*job.body)(begin, end, worker);
      return;
    }
    const uint64_t n = n_pieces(job.n_tasks, job.grain);
    while (!failed.load(std::memory_order_relaxed)) {
      const uint64_t piece = next_piece.fetch_add(1, std::memory_order_relaxed);
      if (piece >= n) return;
      run_piece(job, piece, worker);
    }
  } catch (...) {
    const std::lock_guard lock(failure_mutex);
    if (!failure) failure = std::current_exception();
    failed.store(true, std::memory_order_relaxed);
  }
}

void ThreadPool::Impl::run_region(const Job& what) {
  const std::lock_guard lock(callers);
  job = what;
  next_piece.store(0, std::memory_order_relaxed);
  failed.store(false, std::memory_order_relaxed);
  if (job.split == Split::kBalanced)
    for (uint32_t worker = 0; worker < n_workers(); ++worker) shares[worker].set(share_of(worker));
  const uint64_t n = job.split == Split::kPieces ? n_pieces(job.n_tasks, job.grain) : job.n_tasks;
  if (n > 1) publish();
  run_share(0);
  if (n > 1 && job.split != Split::kOwnShares) take_over();
  for (;;) {
    const uint32_t left = pending.value.load(std::memory_order_acquire);
    if (left == 0) break;
    pending.wait_while_equal(left, spin);
  }
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

void ThreadPool::Impl::start_threads(const Topology* bind_to) {
  // A thread inherits its creator's mask, which may be the one core another pool bound it to.
  const CpuMask mask = thread_affinity_before_binding();
  try {
    for (uint32_t worker = 1; worker < n_workers(); ++worker) {
      threads.emplace_back([this, worker, mask] {
        const SignalStack stack;
        restore_thread_affinity(mask);
        pthread_setname_np(pthread_self(), ("kvasir-" + std::to_string(worker)).c_str());
        worker_loop(worker);
      });
    }
  } catch (const std::system_error& error) {
    const size_t n_started = threads.size();
    stop_threads();
    throw Error(ErrorKind::kResource, "thread " + std::to_string(n_started + 1) + " of " +
                                          std::to_string(n_workers()) +
                                          " cannot be started: " + error.what() +
                                          "; ask for fewer threads or raise ulimit -u");
  }
  if (bind_to == nullptr) return;
  owner = std::this_thread::get_id();
  std::vector<char> bound(n_workers(), 0);
  // In a region of their own: the topology is the caller's and may be gone afterwards.
  const Body bind = [&](uint64_t, uint64_t, uint32_t worker) {
    bound[worker] = bind_to->bind_this_thread(placed[worker]) ? 1 : 0;
  };
  run_region({&bind, n_workers(), 0, Split::kOwnShares});
  caller_bound = bound[0] != 0;
  n_pools_binding += caller_bound ? 1 : 0;
}

void ThreadPool::Impl::stop_threads() {
  stopping = true;
  publish();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

ThreadPool::ThreadPool(const Topology& topology, uint32_t n_threads, bool bind)
    : impl_(std::make_unique<Impl>()) {
  impl_->placed = place_workers(topology, checked_thread_count(topology, n_threads));
  // Spinning helps only while every worker has a CPU of this machine to itself.
  impl_->spin = impl_->n_workers() <= thread_affinity_before_binding().count();
  const bool bound = bind && impl_->n_workers() <= topology.cores().size();
  for (const Core& core : impl_->placed) {
    const uint32_t os_index = topology.nodes()[core.node].os_index;
    impl_->os_nodes.push_back(bound ? static_cast<int>(os_index) : -1);
  }
  impl_->begun = std::vector<Begun>(impl_->n_workers());
  impl_->shares = std::vector<Share>(impl_->n_workers());
  impl_->start_threads(bound ? &topology : nullptr);
}

ThreadPool::~ThreadPool() {
  impl_->stop_threads();
  if (!impl_->caller_bound || impl_->owner != std::this_thread::get_id()) return;
  if (--n_pools_binding == 0) restore_thread_affinity(thread_affinity_before_binding());
}

uint32_t ThreadPool::n_workers() const { return impl_->n_workers(); }
uint32_t ThreadPool::node_of(uint32_t worker) const { return impl_->placed.at(worker).node; }
int ThreadPool::os_node_of(uint32_t worker) const { return impl_->os_nodes.at(worker); }

void ThreadPool::Impl::run(const Job& what) {
  if (what.n_tasks == 0) return;
  if (inside.pool == this)
    run_serially(what, inside.worker);
  else
    run_region(what);
}

void ThreadPool::parallel_for(uint64_t n_tasks, uint64_t grain, const Body& fn) {
  impl_->run({&fn, n_tasks, grain, grain != 0 ? Split::kPieces : Split::kShares});
}

void ThreadPool::for_own_shares(uint64_t n_tasks, const Body& fn) {
  impl_->run({&fn, n_tasks, 0, Split::kOwnShares});
}

void ThreadPool::for_balanced_shares(uint64_t n_tasks, const Body& fn) {
  if (n_tasks > UINT32_MAX) return parallel_for(n_tasks, 0, fn);  // Share's word holds no more
  impl_->run({&fn, n_tasks, 0, Split::kBalanced});
}

void ThreadPool::run_on_all(const std::function<void(uint32_t worker)>& fn) {
  if (inside.pool == impl_.get()) {
    throw Error(ErrorKind::kInternal,
                "ThreadPool::run_on_all was called inside a region, where the other workers are "
                "busy; call it before the region");
  }
  const Body body = [&fn](uint64_t, uint64_t, uint32_t worker) { fn(worker); };
  impl_->run_region({&body, n_workers(), 0, Split::kOwnShares});
}

}  // namespace kvasir
