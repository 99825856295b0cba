// Work of a stream that is recorded and started again as a whole.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/rms_norm.h"
#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using emulation::Fault;
using kvasir::test::DeviceArray;

struct OwnStream {
  Stream stream = make_stream();
  OwnStream() = default;
  ~OwnStream() { destroy_stream(stream); }
  OwnStream(const OwnStream&) = delete;
};

// y += norm(x) of one row of 4.
RmsNorm added(const DeviceArray<float>& x, const DeviceArray<float>& weight,
              const DeviceArray<float>& y) {
  const auto at = [](const DeviceArray<float>& array) {
    return reinterpret_cast<uint64_t>(array.data());
  };
  return {at(x), at(weight), at(y), 1, 4, 0.0f, true};
}

}  // namespace

TEST_SUITE("kernels/cuda/graph") {
  TEST_CASE("what is recorded runs when it is started, each time with what is there then") {
    const OwnStream own;
    const DeviceArray<float> x(std::vector<float>{1, 1, 1, 1}),
        weight(std::vector<float>{1, 2, 3, 4}), y(4), copy(4);
    std::vector<float> host(4, 7);
    REQUIRE(pin_memory(host.data(), 16));
    const Launches before = launches();
    begin_capture(own.stream);
    zero_memory(y.data(), 8, own.stream);
    rms_norm(added(x, weight, y), own.stream);
    copy_on_device(copy.data(), y.data(), 16, own.stream);
    copy_to_host(host.data(), copy.data(), 16, own.stream);
    const Graph graph = end_capture(own.stream);
    CHECK(launches().kernels == before.kernels);
    wait(own.stream);
    CHECK(host == std::vector<float>(4, 7));

    const std::vector<float> first = {5, 5, 5, 5}, second = {-2, 2, 2, 2};
    copy_to_device(y.data(), first.data(), 16, own.stream);
    launch_graph(graph, own.stream);
    wait(own.stream);
    CHECK(host == std::vector<float>{1, 2, 8, 9});
    copy_to_device(x.data(), second.data(), 16, own.stream);
    launch_graph(graph, own.stream);
    wait(own.stream);
    CHECK(host == std::vector<float>{-1, 2, 11, 13});
    CHECK(launches().kernels == before.kernels);
    CHECK(launches().graphs == before.graphs + 2);
    destroy_graph(graph);
    rms_norm(added(x, weight, y), own.stream);
    CHECK(launches().kernels == before.kernels + 1);
    unpin_memory(host.data());
  }

  TEST_CASE("what cannot be recorded is refused, and so is the recording that it was in") {
    const OwnStream own, other;
    const DeviceArray<float> y(std::vector<float>{1, 2, 3, 4});
    float host[4] = {};
    const auto refuses = [&](const char* text, const auto& work) {
      begin_capture(own.stream);
      CHECK_THROWS_WITH_AS(work(), text, Fault);
      CHECK_THROWS_WITH_AS(end_capture(own.stream), "a capture ends in which something was refused",
                           Fault);
      abandon_capture(own.stream);
    };
    refuses("somebody waits while the stream is captured", [&] { wait(own.stream); });
    refuses("memory is allocated while the thread captures a stream", [] { allocate_memory(4); });
    refuses("memory that is not pinned is copied while the stream is captured",
            [&] { copy_to_host(host, y.data(), 16, own.stream); });
    refuses("memory that is not pinned is copied while the stream is captured",
            [&] { copy_to_device(y.data(), host, 16, own.stream); });
    CHECK_THROWS_AS(begin_capture({}), Fault);
    CHECK_THROWS_AS(end_capture(own.stream), Fault);

    begin_capture(own.stream);
    zero_memory(y.data(), 4, own.stream);
    copy_to_host(host, y.data(), 16, other.stream);  // another stream goes on
    wait(other.stream);
    CHECK(host[0] == 1);
    abandon_capture(own.stream);
    CHECK(y.values()[0] == 1);
  }

  TEST_CASE("memory that was freed since is found where the graph uses it") {
    const OwnStream own;
    Graph graph;
    {
      const DeviceArray<float> gone(4);
      begin_capture(own.stream);
      zero_memory(gone.data(), 16, own.stream);
      graph = end_capture(own.stream);
    }
    CHECK_THROWS_AS(launch_graph(graph, own.stream), Fault);
    destroy_graph(graph);
  }
}
