// What the host offers: extensions, pool, scratch, log, completion queue, breadcrumb.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/host.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "core/plugin/breadcrumb.h"
#include "core/plugin/watchdog.h"
#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using kvasir::test::check_says;
using kvasir::test::Host;
using namespace std::chrono_literals;

template <class T>
const T& extension(const Host& host, const char* id) {
  const kvasir_host* h = host.services.host();
  const void* found = h->get_extension(h->self, id);
  REQUIRE(found != nullptr);
  return *static_cast<const T*>(found);
}

TEST_CASE("the host speaks this ABI and knows its extensions by exact id") {
  Host host;
  const kvasir_host* h = host.services.host();
  CHECK(h->struct_size == sizeof(kvasir_host));
  CHECK(h->abi_major == KVASIR_ABI_MAJOR);
  CHECK(h->abi_minor_min <= KVASIR_ABI_MINOR);
  CHECK(h->abi_minor_max == KVASIR_ABI_MINOR);
  CHECK(std::strlen(h->version) > 0);
  for (const char* id : {"kvasir.thread-pool/2", "kvasir.thread-pool", "", "org.test.x/1"}) {
    CHECK(h->get_extension(h->self, id) == nullptr);
  }
  CHECK(h->get_extension(h->self, nullptr) == nullptr);
}

TEST_CASE("scratch is aligned, per worker, kept while it suffices, and accounted") {
  Host host;
  const auto& scratch = extension<kvasir_scratch>(host, KVASIR_EXT_SCRATCH);
  CHECK(host.services.scratch_bytes() == 0);
  void* a = scratch.get(scratch.self, 0, 1000);
  void* b = scratch.get(scratch.self, 1, 1);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a != b);
  CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
  CHECK(reinterpret_cast<uintptr_t>(b) % 64 == 0);
  std::memset(a, 1, 1000);
  CHECK(scratch.get(scratch.self, 0, 64) == a);
  CHECK(host.services.scratch_bytes() == 1024 + 64);
  CHECK(scratch.get(scratch.self, 0, 0) != nullptr);
  CHECK(scratch.get(scratch.self, 2, 64) == nullptr);  // two workers
  CHECK(scratch.get(scratch.self, 0, UINT64_MAX) == nullptr);
  CHECK(scratch.get(scratch.self, 0, 4096) != nullptr);
  CHECK(host.services.scratch_bytes() == 4096 + 64);
}

TEST_CASE("what a crumb says may be read when who said it is gone") {
  const char* kept = nullptr;
  {
    const std::string text = "org.test.a plugin whose name lies on the heap";
    kept = kept_text(text);
    CHECK(kept != text.c_str());
  }
  CHECK(std::string(kept) == "org.test.a plugin whose name lies on the heap");
  CHECK(kept_text(kept) == kept);
}

TEST_CASE("the pool carries the caller's breadcrumb to its workers") {
  Host host;
  const auto& pool = extension<kvasir_thread_pool>(host, KVASIR_EXT_THREAD_POOL);
  CHECK(pool.max_workers(pool.self) == 2);
  CHECK(breadcrumb().plugin == nullptr);
  const BreadcrumbScope scope({"org.test.x", "/x.so", "select", 5});
  std::atomic<uint64_t> n_right{0};
  const kvasir_task task = [](void* user, uint64_t begin, uint64_t end, uint32_t) noexcept {
    const bool is_right = breadcrumb().plugin && breadcrumb().layer == 5 &&
                          std::strcmp(breadcrumb().function, "select") == 0;
    if (is_right) *static_cast<std::atomic<uint64_t>*>(user) += end - begin;
  };
  CHECK(pool.parallel_for(pool.self, 1000, 1, task, &n_right) == 0);
  CHECK(n_right == 1000);
  CHECK(pool.parallel_for(pool.self, 10, 1, nullptr, nullptr) != 0);
}

TEST_CASE("beside the pool plugins do their loops themselves, with scratch of their own") {
  Host host;
  const auto& pool = extension<kvasir_thread_pool>(host, KVASIR_EXT_THREAD_POOL);
  const auto& scratch = extension<kvasir_scratch>(host, KVASIR_EXT_SCRATCH);
  const kvasir_task nothing = [](void*, uint64_t, uint64_t, uint32_t) noexcept {};
  void* const usual = scratch.get(scratch.self, 0, 64);
  std::thread([&] {
    const BesidePool scope;
    CHECK(pool.parallel_for(pool.self, 10, 1, nothing, nullptr) != 0);
    CHECK(scratch.get(scratch.self, 0, 4096) != nullptr);
    CHECK(scratch.get(scratch.self, 0, 64) != usual);
  }).join();
  CHECK(scratch.get(scratch.self, 0, 64) == usual);
  CHECK(pool.parallel_for(pool.self, 10, 1, nothing, nullptr) == 0);
}

TEST_CASE("the pool says which memory node a worker is on, if it is on one") {
  Host floating;
  const auto& unknown = extension<kvasir_thread_pool>(floating, KVASIR_EXT_THREAD_POOL);
  CHECK(unknown.node_of(unknown.self, 0) == -1);
  ThreadPool pool(Topology::synthetic("numa:2 core:2 pu:1"));
  const HostServices services(pool, {});
  const kvasir_host* h = services.host();
  const auto& known =
      *static_cast<const kvasir_thread_pool*>(h->get_extension(h->self, KVASIR_EXT_THREAD_POOL));
  CHECK(known.node_of(known.self, 0) == 0);
  CHECK(known.node_of(known.self, 3) == 1);
  CHECK(known.node_of(known.self, 4) == -1);  // no such worker
}

TEST_CASE("calls under way are seen from other threads, and told apart") {
  const auto is_ours = [](const RunningCall& call) {
    return std::strcmp(call.crumb.plugin, "org.test.seen") == 0;
  };
  const auto seen = [&] {
    std::vector<RunningCall> calls;
    std::thread([&] { calls = running_calls(); }).join();
    std::erase_if(calls, [&](const RunningCall& call) { return !is_ours(call); });
    return calls;
  };
  CHECK(seen().empty());
  uint64_t number = 0;
  {
    const BreadcrumbScope scope({"org.test.seen", "/x.so", "select", 7});
    REQUIRE(seen().size() == 1);
    number = seen()[0].number;
    CHECK(seen()[0].number == number);
    CHECK(seen()[0].crumb.layer == 7);
    CHECK(seen()[0].crumb.path == std::string("/x.so"));
  }
  CHECK(seen().empty());
  const BreadcrumbScope again({"org.test.seen", "/x.so", "select", 7});
  REQUIRE(seen().size() == 1);
  CHECK(seen()[0].number != number);
}

TEST_CASE("the watchdog tells of a call that goes on, and how long it has") {
  std::atomic<int64_t> longest{0};
  const Watchdog watchdog([&](const RunningCall& call, std::chrono::milliseconds age) {
    if (std::strcmp(call.crumb.plugin, "org.test.slow") == 0) longest = age.count();
  });
  const BreadcrumbScope scope({"org.test.slow", "/x.so", "select", 7});
  for (int i = 0; i < 1000 && longest < 900; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(longest >= 900);
}

TEST_CASE("breadcrumbs nest, and belong to their thread") {
  {
    const BreadcrumbScope outer({"a", "/a.so", "select", 1});
    {
      const BreadcrumbScope inner({"b", "/b.so", "run", 2});
      CHECK(std::strcmp(breadcrumb().plugin, "b") == 0);
      std::thread([] { CHECK(breadcrumb().plugin == nullptr); }).join();
    }
    CHECK(std::strcmp(breadcrumb().plugin, "a") == 0);
    CHECK(breadcrumb().layer == 1);
  }
  CHECK(breadcrumb().plugin == nullptr);
}

TEST_CASE("a ticket is reported once, from any thread, and then gone") {
  Host host;
  const auto& c = extension<kvasir_completion>(host, KVASIR_EXT_COMPLETION);
  const uint64_t ticket = host.services.new_ticket();
  CHECK(ticket != 0);
  Completion report{};
  CHECK_FALSE(host.services.poll(ticket, &report));
  CHECK_FALSE(host.services.wait(ticket, 1ms, &report));
  std::thread thread([&] {
    const kvasir_status blocks[] = {KVASIR_OK, KVASIR_ERR_IO};
    c.complete(c.self, ticket, KVASIR_ERR_IO, blocks, 2, 4096);
  });
  CHECK(host.services.wait(ticket, 10s, &report));
  thread.join();
  CHECK(report.ticket == ticket);
  CHECK(report.status == KVASIR_ERR_IO);
  CHECK(report.block_status == std::vector<kvasir_status>{KVASIR_OK, KVASIR_ERR_IO});
  CHECK(report.bytes == 4096);
  CHECK_FALSE(host.services.poll(ticket, &report));
  CHECK(host.log.empty());
}

TEST_CASE("a ticket that is reported twice, unknown or discarded is a defect that is logged") {
  Host host;
  const auto& c = extension<kvasir_completion>(host, KVASIR_EXT_COMPLETION);
  const uint64_t ticket = host.services.new_ticket();
  c.complete(c.self, ticket, KVASIR_OK, nullptr, 0, 1);
  c.complete(c.self, ticket, KVASIR_ERR_IO, nullptr, 0, 2);
  REQUIRE(host.log.size() == 1);
  CHECK(host.log[0].level == KVASIR_LOG_ERROR);
  check_says(host.log[0].text, {"defect", "twice"});
  Completion report{};
  CHECK(host.services.poll(ticket, &report));
  CHECK(report.bytes == 1);  // the first report stands
  c.complete(c.self, ticket, KVASIR_OK, nullptr, 0, 3);
  c.complete(c.self, 999, KVASIR_OK, nullptr, 0, 3);
  const uint64_t unused = host.services.new_ticket();
  host.services.discard(unused);
  c.complete(c.self, unused, KVASIR_OK, nullptr, 0, 3);
  CHECK(host.log.size() == 4);
  CHECK_FALSE(host.services.wait(unused, 10s, &report));  // at once: nobody will report
}

TEST_CASE("tickets of many threads do not mix") {
  Host host;
  const auto& c = extension<kvasir_completion>(host, KVASIR_EXT_COMPLETION);
  std::vector<uint64_t> tickets;
  for (int i = 0; i < 400; ++i) tickets.push_back(host.services.new_ticket());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < tickets.size(); i += 4) {
        c.complete(c.self, tickets[i], KVASIR_OK, nullptr, 0, tickets[i] * 10);
      }
    });
  }
  bool is_right = true;
  for (const uint64_t ticket : tickets) {
    Completion report{};
    is_right = is_right && host.services.wait(ticket, 10s, &report) && report.bytes == ticket * 10;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(is_right);
  CHECK(host.log.empty());
}

TEST_CASE("a log that throws does not reach the plugin") {
  const Topology topology = Topology::synthetic("numa:1 core:1 pu:1");
  ThreadPool pool(topology, 1, false);
  const HostServices services(pool, [](uint32_t, const std::string&, const std::string&) {
    throw std::runtime_error("the disk is full");
  });
  const kvasir_host* h = services.host();
  const auto* log = static_cast<const kvasir_log*>(h->get_extension(h->self, KVASIR_EXT_LOG));
  log->write(log->self, KVASIR_LOG_INFO, "org.test.x", "hello");
}

}  // namespace
