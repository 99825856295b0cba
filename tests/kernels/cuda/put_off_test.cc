// Streams whose work comes late: what nobody has waited for was not done.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/emulation/capture.h"
#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/top_k.h"
#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;
using Bytes = std::vector<uint8_t>;

struct PutOff {
  PutOff() { emulation::put_off(true); }
  ~PutOff() {
    emulation::put_off(false);
    destroy_stream(a);
    destroy_stream(b);
  }
  Stream a = make_stream(), b = make_stream();
};

// Without waiting for anything.
Bytes now(const DeviceArray<uint8_t>& array) { return {array.data(), array.data() + array.size()}; }

}  // namespace

TEST_SUITE("kernels/cuda/put_off") {
  TEST_CASE("a stream does what it was given, in order, when it is waited for, others do not") {
    const DeviceArray<uint8_t> x(Bytes{1, 2}), y(Bytes{3, 4});
    const PutOff scope;
    Bytes from = {7, 8};
    copy_to_device(x.data(), from.data(), 2, scope.a);
    from = {0, 0};  // taken when it was given
    copy_on_device(y.data(), x.data(), 2, scope.b);
    fill_memory(x.data(), 9, 1, scope.a);
    CHECK(now(x) == Bytes{1, 2});
    wait(scope.b);
    CHECK(now(y) == Bytes{1, 2});  // too early
    wait(scope.a);
    CHECK(now(x) == Bytes{9, 8});
    fill_memory(x.data(), 5, 2, scope.a);
    Bytes got(2);
    copy_to_host(got.data(), x.data(), 2, scope.a);  // is done when it returns
    CHECK(got == Bytes{5, 5});
  }

  TEST_CASE("freeing memory, the default stream and the end of a stream wait") {
    const DeviceArray<uint8_t> x(Bytes{1});
    const PutOff scope;
    fill_memory(x.data(), 2, 1, scope.a);
    { const DeviceArray<uint8_t> freed(1); }
    CHECK(now(x) == Bytes{2});
    fill_memory(x.data(), 3, 1, scope.a);
    CHECK(x.values() == Bytes{3});
    const Stream ends = make_stream();
    fill_memory(x.data(), 4, 1, ends);
    destroy_stream(ends);
    CHECK(now(x) == Bytes{4});
  }

  TEST_CASE("graphs come late, too, and what a launch does wrong is told by the wait") {
    const DeviceArray<uint8_t> x(Bytes{1});
    const PutOff scope;
    begin_capture(scope.a);
    fill_memory(x.data(), 2, 1, scope.a);
    const Graph graph = end_capture(scope.a);
    launch_graph(graph, scope.a);
    destroy_graph(graph);
    CHECK(now(x) == Bytes{1});
    const uint64_t before = emulation::n_waits();
    wait(scope.a);
    CHECK(emulation::n_waits() == before + 1);
    CHECK(now(x) == Bytes{2});
    CHECK_NOTHROW(top_k(0, 1, scope.a));  // of no list
    CHECK_THROWS_AS(wait(scope.a), emulation::Fault);
    CHECK_NOTHROW(wait(scope.a));
  }
}
