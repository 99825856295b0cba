// ThreadPool: every task exactly once, exceptions, nesting, placement on synthetic machines.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/thread_pool.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/platform/affinity.h"

namespace kvasir {
namespace {

Topology flat(uint32_t n_cores) {
  return Topology::synthetic("core:" + std::to_string(n_cores) + " pu:1");
}

uint32_t n_allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

// Runs one region and counts visits per task; also that pieces obey the grain.
void check_every_task_once(ThreadPool& pool, uint64_t n_tasks, uint64_t grain) {
  CAPTURE(n_tasks);
  CAPTURE(grain);
  CAPTURE(pool.n_workers());
  std::vector<std::atomic<uint32_t>> visits(n_tasks);
  std::vector<std::atomic<uint32_t>> pieces(pool.n_workers());
  std::atomic<uint64_t> faults{0};
  pool.parallel_for(n_tasks, grain, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    if (begin >= end || end > n_tasks || worker >= pool.n_workers()) {
      ++faults;
      return;
    }
    if (grain != 0 && end - begin > grain) ++faults;
    ++pieces[worker];
    for (uint64_t task = begin; task < end; ++task) ++visits[task];
  });
  CHECK(faults == 0);
  for (const auto& n : visits) CHECK(n == 1);
  if (grain == 0) {
    for (const auto& n : pieces) CHECK(n <= 1);
  }
}

TEST_CASE("every task runs exactly once, in pieces of at most the grain") {
  for (const uint32_t n_threads : {1u, 2u, 3u, 8u}) {
    ThreadPool pool(flat(8), n_threads);
    for (const uint64_t n_tasks : {1u, 2u, 7u, 8u, 64u, 1000u}) {
      for (const uint64_t grain : {0u, 1u, 3u, 1000u, 5000u}) {
        check_every_task_once(pool, n_tasks, grain);
      }
    }
  }
}

TEST_CASE("the static split is even: shares differ by one task at most") {
  ThreadPool pool(flat(4));
  for (const uint64_t n_tasks : {4u, 5u, 6u, 7u, 103u}) {
    std::vector<uint64_t> share(4, 0);
    pool.parallel_for(n_tasks, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      share[worker] = end - begin;
    });
    for (const uint64_t n : share) CHECK((n == n_tasks / 4 || n == n_tasks / 4 + 1));
  }
}

TEST_CASE("ranges near 2^64 do not overflow") {
  ThreadPool pool(flat(3));
  std::atomic<uint64_t> total{0};
  const auto add = [&](uint64_t begin, uint64_t end, uint32_t) { total += end - begin; };
  pool.parallel_for(UINT64_MAX, 0, add);
  CHECK(total == UINT64_MAX);
  total = 0;
  pool.parallel_for(UINT64_MAX, UINT64_MAX / 5, add);
  CHECK(total == UINT64_MAX);
}

TEST_CASE("zero tasks call nothing") {
  ThreadPool pool(flat(2));
  bool called = false;
  pool.parallel_for(0, 0, [&](uint64_t, uint64_t, uint32_t) { called = true; });
  pool.parallel_for(0, 16, [&](uint64_t, uint64_t, uint32_t) { called = true; });
  CHECK_FALSE(called);
}

TEST_CASE(
    "run_on_all runs once on each worker, on a thread of its own, the caller being worker 0") {
  ThreadPool pool(flat(4));
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::vector<uint32_t> runs(4, 0);
  std::thread::id of_worker_0;
  pool.run_on_all([&](uint32_t worker) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
    ++runs.at(worker);
    if (worker == 0) of_worker_0 = std::this_thread::get_id();
  });
  CHECK(ids.size() == 4);
  CHECK(of_worker_0 == std::this_thread::get_id());
  for (const uint32_t n : runs) CHECK(n == 1);
}

TEST_CASE("own shares are an even split, each on the thread of its worker, however late it is") {
  ThreadPool pool(flat(4));
  std::mutex mutex;
  std::vector<std::thread::id> thread_of(4);
  pool.run_on_all([&](uint32_t worker) { thread_of[worker] = std::this_thread::get_id(); });
  std::vector<std::pair<uint64_t, uint64_t>> split(4), got(4);
  pool.parallel_for(30, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    const std::lock_guard lock(mutex);
    split[worker] = {begin, end};
  });
  uint32_t n_elsewhere = 0;
  for (int round = 0; round < 50; ++round) {
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they sleep
    pool.for_own_shares(30, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      const std::lock_guard lock(mutex);
      got[worker] = {begin, end};
      n_elsewhere += std::this_thread::get_id() != thread_of[worker];
    });
    CHECK(got == split);
  }
  CHECK(n_elsewhere == 0);
}

// Who did each task of balanced shares. before(begin, end, worker) comes before those of a piece.
template <class Before>
std::vector<uint32_t> workers_of_tasks(ThreadPool& pool, uint64_t n_tasks, const Before& before) {
  std::vector<std::atomic<uint32_t>> visits(n_tasks);
  std::vector<uint32_t> worker_of(n_tasks, UINT32_MAX);
  pool.for_balanced_shares(n_tasks, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    before(begin, end, worker);
    for (uint64_t task = begin; task < end; ++task) {
      ++visits[task];
      worker_of[task] = worker;
    }
  });
  uint64_t n_once = 0;
  for (const auto& n : visits) n_once += n == 1;
  CHECK(n_once == n_tasks);
  return worker_of;
}

TEST_CASE("every task of balanced shares runs exactly once, by a worker of the share's node") {
  for (const char* machine : {"core:8 pu:1", "numa:2 core:4 pu:1"}) {
    for (const uint32_t n_threads : {1u, 2u, 3u, 8u}) {
      ThreadPool pool(Topology::synthetic(machine), n_threads);
      CAPTURE(n_threads);
      for (const uint64_t n_tasks : {0u, 1u, 2u, 7u, 8u, 64u, 1000u}) {
        CAPTURE(n_tasks);
        std::vector<uint32_t> node_of_share(n_tasks);
        pool.for_own_shares(n_tasks, [&](uint64_t begin, uint64_t end, uint32_t worker) {
          std::fill(node_of_share.begin() + static_cast<ptrdiff_t>(begin),
                    node_of_share.begin() + static_cast<ptrdiff_t>(end), pool.node_of(worker));
        });
        for (int round = 0; round < 20; ++round) {
          const auto worker_of = workers_of_tasks(pool, n_tasks, [](auto...) {});
          uint64_t n_elsewhere = 0;
          for (uint64_t task = 0; task < n_tasks; ++task)
            n_elsewhere += pool.node_of(worker_of[task]) != node_of_share[task];
          CHECK(n_elsewhere == 0);
        }
      }
    }
  }
}

TEST_CASE("what a worker of balanced shares does not get to, the others do") {
  ThreadPool pool(flat(3));
  constexpr uint64_t kTasks = 300;
  for (uint32_t slow = 0; slow < 3; ++slow) {
    CAPTURE(slow);
    std::atomic<uint64_t> n_done{0};
    uint64_t n_of_slow = 0;
    bool waited_in_vain = false;
    // It comes back when nothing is left but the piece that it began.
    workers_of_tasks(pool, kTasks, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      const uint64_t n = end - begin;
      if (worker == slow) {
        n_of_slow += n;
        const auto start = std::chrono::steady_clock::now();
        while (n_done + n < kTasks && !waited_in_vain) {
          std::this_thread::yield();
          waited_in_vain = std::chrono::steady_clock::now() - start > std::chrono::seconds(60);
        }
      }
      n_done += n;
    });
    CHECK_FALSE(waited_in_vain);
    CHECK(n_of_slow < kTasks / 3);  // its share
  }
}

TEST_CASE("an exception from any worker reaches the caller and the pool stays usable") {
  ThreadPool pool(flat(4));
  for (uint32_t thrower = 0; thrower < 4; ++thrower) {
    std::atomic<uint32_t> entered{0};
    const auto body = [&](uint32_t worker) {
      ++entered;
      if (worker == thrower) throw std::runtime_error("worker " + std::to_string(worker));
    };
    CHECK_THROWS_WITH_AS(pool.run_on_all(body), ("worker " + std::to_string(thrower)).c_str(),
                         std::runtime_error);
    CHECK(entered == 4);  // the others had finished when the exception came out
    check_every_task_once(pool, 100, 1);
  }
  const auto all_throw = [](uint64_t, uint64_t, uint32_t) { throw Error(input_error("bad")); };
  CHECK_THROWS_AS(pool.parallel_for(100, 1, all_throw), Error);
  check_every_task_once(pool, 100, 0);
  CHECK_THROWS_AS(pool.for_balanced_shares(100, all_throw), Error);
  workers_of_tasks(pool, 100, [](auto...) {});
}

TEST_CASE("an exception stops the hand-out of further pieces") {
  ThreadPool pool(flat(2));
  std::atomic<uint64_t> n_run{0};
  const auto body = [&](uint64_t begin, uint64_t, uint32_t) {
    ++n_run;
    if (begin == 0) throw std::runtime_error("first");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  CHECK_THROWS_AS(pool.parallel_for(5000, 1, body), std::runtime_error);
  CHECK(n_run < 2500);  // a handful; 5000 when the other worker is not told
}

TEST_CASE("a nested call runs serially on the calling worker, in pieces of the grain") {
  ThreadPool pool(flat(3));
  std::atomic<uint32_t> faults{0};
  std::atomic<uint64_t> n_inner{0};
  pool.parallel_for(30, 1, [&](uint64_t, uint64_t, uint32_t worker) {
    const auto thread = std::this_thread::get_id();
    uint64_t expected_begin = 0;
    pool.parallel_for(10, 4, [&](uint64_t begin, uint64_t end, uint32_t inner_worker) {
      if (std::this_thread::get_id() != thread || inner_worker != worker) ++faults;
      if (begin != expected_begin || end - begin > 4) ++faults;
      expected_begin = end;
      n_inner += end - begin;
    });
    if (expected_begin != 10) ++faults;
  });
  CHECK(faults == 0);
  CHECK(n_inner == 300);
  // A region of one piece is a region, too.
  pool.parallel_for(1, 0, [&](uint64_t, uint64_t, uint32_t) {
    const auto thread = std::this_thread::get_id();
    pool.parallel_for(9, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      if (begin != 0 || end != 9 || worker != 0 || thread != std::this_thread::get_id()) ++faults;
    });
  });
  CHECK(faults == 0);
  check_every_task_once(pool, 50, 1);
}

TEST_CASE("a nested exception passes through; run_on_all refuses to nest") {
  ThreadPool pool(flat(2));
  CHECK_THROWS_WITH(pool.parallel_for(4, 1,
                                      [&](uint64_t, uint64_t, uint32_t) {
                                        pool.parallel_for(2, 1, [](uint64_t, uint64_t, uint32_t) {
                                          throw std::runtime_error("inner");
                                        });
                                      }),
                    "inner");
  CHECK_THROWS_AS(pool.run_on_all([&](uint32_t) { pool.run_on_all([](uint32_t) {}); }), Error);
  check_every_task_once(pool, 10, 1);
}

TEST_CASE("another pool used inside a region runs there in parallel") {
  ThreadPool outer(flat(2)), inner(flat(2));
  std::atomic<uint64_t> n{0};
  outer.run_on_all(
      [&](uint32_t) { inner.parallel_for(100, 1, [&](uint64_t, uint64_t, uint32_t) { ++n; }); });
  CHECK(n == 200);
}

TEST_CASE("threads that share a pool take turns") {
  ThreadPool pool(flat(3));
  std::atomic<uint32_t> inside_regions{0}, faults{0};
  std::vector<std::atomic<uint32_t>> busy(3);
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      pool.run_on_all([&](uint32_t worker) {
        if (busy[worker]++ != 0) ++faults;
        ++inside_regions;
        std::this_thread::yield();  // lets the other callers in, where they may not come in
        --busy[worker];
      });
    }
  };
  std::thread a(work), b(work);
  work();
  a.join();
  b.join();
  CHECK(faults == 0);
  CHECK(inside_regions == 3 * 3 * 200);
}

TEST_CASE("many short regions, with and without sleeping in between") {
  for (const uint32_t n_threads : {2u, 5u}) {
    ThreadPool pool(flat(8), n_threads);
    // Written without atomics by one worker, read by another in the next region: a missing
    // happens-before between regions shows under the thread sanitizer.
    std::vector<uint64_t> cells(64, 0);
    for (int round = 0; round < 3000; ++round) {
      pool.parallel_for(cells.size(), round % 2 == 0 ? 0 : 3,
                        [&](uint64_t begin, uint64_t end, uint32_t) {
                          for (uint64_t i = begin; i < end; ++i) ++cells[cells.size() - 1 - i];
                        });
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (const uint64_t n : cells) CHECK(n == 3000);
  }
}

TEST_CASE("the caller does the shares of workers that sleep, as those workers, each once") {
  for (const uint32_t n_threads : {2u, 5u}) {
    ThreadPool pool(flat(8), n_threads);
    const std::thread::id caller = std::this_thread::get_id();
    uint32_t n_taken_over = 0;
    // Whether a worker is late is the scheduler's choice: more rounds where none was.
    for (int round = 0; round < 60 || (n_taken_over == 0 && round < 3000); ++round) {
      if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::vector<uint32_t> n_of_worker(n_threads, 0), on_caller(n_threads, 0);  // no atomics
      pool.parallel_for(n_threads, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
        if (begin == worker && end == begin + 1) ++n_of_worker[worker];
        on_caller[worker] = std::this_thread::get_id() == caller;
      });
      for (uint32_t worker = 0; worker < n_threads; ++worker) CHECK(n_of_worker[worker] == 1);
      CHECK(on_caller[0] == 1);
      for (uint32_t worker = 1; worker < n_threads; ++worker) n_taken_over += on_caller[worker];
      // Set-up of a thread is not for the caller to do.
      std::vector<std::thread::id> ids(n_threads);
      pool.run_on_all([&](uint32_t worker) { ids[worker] = std::this_thread::get_id(); });
      CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == n_threads);
    }
    CHECK(n_taken_over > 0);
  }
}

TEST_CASE("a pool can be destroyed at once, while spinning and while asleep") {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(flat(4));
    if (i % 3 == 1) pool.run_on_all([](uint32_t) {});
    if (i % 3 == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<uint32_t> nodes_of_workers(const std::string& description, uint32_t n_threads) {
  const ThreadPool pool(Topology::synthetic(description), n_threads);
  std::vector<uint32_t> nodes;
  for (uint32_t worker = 0; worker < pool.n_workers(); ++worker) {
    nodes.push_back(pool.node_of(worker));
  }
  return nodes;
}

TEST_CASE("workers are grouped by node and spread over the nodes") {
  using Nodes = std::vector<uint32_t>;
  CHECK(nodes_of_workers("numa:2 core:4 pu:2", 0) == Nodes{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(nodes_of_workers("numa:4 core:2 pu:1", 0) == Nodes{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(nodes_of_workers("numa:2 core:4 pu:2", 2) == Nodes{0, 1});
  CHECK(nodes_of_workers("numa:2 core:4 pu:2", 5) == Nodes{0, 0, 0, 1, 1});
  CHECK(nodes_of_workers("numa:4 core:2 pu:1", 3) == Nodes{0, 1, 2});
  CHECK(nodes_of_workers("numa:2 core:1 pu:2", 5) == Nodes{0, 0, 0, 1, 1});  // more than cores
}

TEST_CASE("a bound worker's node has the operating system's number, a floating one's has none") {
  const Topology topology = Topology::synthetic("numa:2(indexes=5,2) core:2 pu:1");
  const auto os_nodes = [&](uint32_t n_threads, bool bind) {
    const ThreadPool pool(topology, n_threads, bind);
    std::vector<int> nodes;
    for (uint32_t worker = 0; worker < pool.n_workers(); ++worker)
      nodes.push_back(pool.os_node_of(worker));
    return nodes;
  };
  const std::vector<int> bound = os_nodes(4, true);
  CHECK(std::set<int>(bound.begin(), bound.end()) == std::set<int>{2, 5});
  CHECK(bound[0] == bound[1]);
  CHECK(bound[2] == bound[3]);
  CHECK(os_nodes(5, true) == std::vector<int>(5, -1));  // more than cores
  CHECK(os_nodes(2, false) == std::vector<int>(2, -1));
}

TEST_CASE("thread counts: default, one, too many") {
  CHECK(ThreadPool(flat(5)).n_workers() == 5);
  CHECK(ThreadPool(flat(5), 1).n_workers() == 1);
  CHECK(ThreadPool(flat(2), 7).n_workers() == 7);
  CHECK_THROWS_AS(ThreadPool(flat(2), 1000000), Error);
  const ThreadPool pool(flat(2));
  CHECK_THROWS(pool.node_of(2));
  CHECK_THROWS(pool.os_node_of(2));
}

TEST_CASE("on this machine each worker is bound to its core, and the caller is freed at the end") {
  const Topology topology = Topology::detect();
  const uint32_t before = n_allowed_cpus();
  {
    ThreadPool pool(topology);
    REQUIRE(pool.n_workers() == topology.cores().size());
    std::vector<int> cpu(pool.n_workers(), -1);
    std::vector<uint32_t> n_allowed(pool.n_workers(), 0);
    pool.run_on_all([&](uint32_t worker) {
      cpu[worker] = sched_getcpu();
      n_allowed[worker] = n_allowed_cpus();
    });
    for (uint32_t worker = 0; worker < pool.n_workers(); ++worker) {
      CHECK(cpu[worker] == static_cast<int>(topology.cores()[worker].os_cpu));
      CHECK(n_allowed[worker] == 1);
    }
    SUBCASE("a second pool, unbound, is not confined to the first one's core") {
      ThreadPool unbound(topology, 3 * pool.n_workers());
      std::vector<uint32_t> n(unbound.n_workers(), 0);
      unbound.run_on_all([&](uint32_t worker) { n[worker] = n_allowed_cpus(); });
      for (uint32_t worker = 1; worker < n.size(); ++worker) CHECK(n[worker] == before);
    }
    SUBCASE(
        "what it starts while it is on all cores runs there, and it is bound again after that") {
      const int core = sched_getcpu();
      uint32_t of_thread = 0;
      {
        const OnAllCores scope;
        CHECK(n_allowed_cpus() == before);
        std::thread([&] { of_thread = n_allowed_cpus(); }).join();
      }
      CHECK(of_thread == before);
      CHECK(n_allowed_cpus() == 1);
      CHECK(sched_getcpu() == core);
      const ThreadPool pool_after(topology);  // still knows what the process may use
      CHECK(thread_affinity_before_binding().count() == before);
    }
    SUBCASE("a second pool may outlive or precede the first one's end") {
      ThreadPool second(topology);
      check_every_task_once(second, 100, 1);
    }
  }
  CHECK(n_allowed_cpus() == before);
  {
    const ThreadPool free(topology, 0, false);
    CHECK(n_allowed_cpus() == before);
  }
}

}  // namespace
}  // namespace kvasir
