// See capture.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/capture.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/fault.h"

namespace kvasir::cuda {
namespace emulation {
namespace {

using Work = std::vector<std::function<void()>>;

struct State {
  std::unique_ptr<Work> recorded;  // null: it is not captured
  bool is_refused = false;
  Work put_off;
};
struct Streams {
  std::mutex mutex;  // of all below, and of put_off of each
  std::set<State*> all;
  bool puts_off = false;
};
Streams& streams() {
  static Streams only;
  return only;
}
thread_local State* captured = nullptr;  // by this thread, one at a time
std::atomic<uint64_t> n_kernels{0}, n_graphs{0}, n_waited{0};

State* state_of(Stream stream) { return static_cast<State*>(stream.handle); }

[[noreturn]] void refuse(const std::string& text) { throw Fault(FaultKind::kCapture, text); }

Work taken_from(State& state) {
  const std::lock_guard lock(streams().mutex);
  return std::exchange(state.put_off, {});
}

std::set<State*> all_streams() {
  const std::lock_guard lock(streams().mutex);
  return streams().all;
}

void run(const Work& work) {
  for (const auto& part : work) part();
}

}  // namespace

void put_off(bool are) {
  const std::lock_guard lock(streams().mutex);
  streams().puts_off = are;
}

bool puts_off(Stream stream) {
  const State* state = state_of(stream);
  const std::lock_guard lock(streams().mutex);
  return streams().puts_off && state && !state->recorded;
}

uint64_t n_waits() { return n_waited; }
void count_wait() { ++n_waited; }

void give(Stream stream, std::function<void()> work) {
  State* state = state_of(stream);
  if (state && state->recorded) {
    state->recorded->push_back(std::move(work));
    return;
  }
  if (state) {
    const std::lock_guard lock(streams().mutex);
    if (streams().puts_off) {
      state->put_off.push_back(std::move(work));
      return;
    }
  } else {
    finish(stream);  // the default stream comes behind all that others were given
  }
  work();
}

void finish(Stream stream) {
  if (State* state = state_of(stream)) return run(taken_from(*state));
  for (State* state : all_streams()) run(taken_from(*state));
}

void finish_all() noexcept {
  try {
    finish({});
  } catch (const std::exception&) {  // nobody asked
  }
}

void give_kernel(Stream stream, std::function<void()> work) {
  const State* state = state_of(stream);
  if (!state || !state->recorded) ++n_kernels;
  give(stream, std::move(work));
}

void refuse_capture(Stream stream, const char* what) {
  State* state = state_of(stream);
  if (!state || !state->recorded) return;
  state->is_refused = true;
  refuse(std::string(what) + " while the stream is captured");
}

void refuse_in_capture(const char* what) {
  if (!captured) return;
  captured->is_refused = true;
  refuse(std::string(what) + " while the thread captures a stream");
}

}  // namespace emulation

using emulation::State;

Stream make_stream() {
  auto* state = new State;
  const std::lock_guard lock(emulation::streams().mutex);
  emulation::streams().all.insert(state);
  return {state};
}
void destroy_stream(Stream stream) noexcept {
  State* state = emulation::state_of(stream);
  if (!state) return;
  try {
    emulation::finish(stream);
  } catch (const std::exception&) {  // as finish_all()
  }
  {
    const std::lock_guard lock(emulation::streams().mutex);
    emulation::streams().all.erase(state);
  }
  delete state;
}

void begin_capture(Stream stream) {
  State* state = emulation::state_of(stream);
  if (!state) emulation::refuse("the default stream is captured");
  if (emulation::captured) emulation::refuse("a second capture begins");
  state->recorded = std::make_unique<emulation::Work>();
  state->is_refused = false;
  emulation::captured = state;
}

Graph end_capture(Stream stream) {
  State* state = emulation::state_of(stream);
  if (!state || !state->recorded) emulation::refuse("a capture ends that did not begin");
  if (state->is_refused) emulation::refuse("a capture ends in which something was refused");
  emulation::captured = nullptr;
  return {state->recorded.release()};
}

void abandon_capture(Stream stream) noexcept {
  emulation::state_of(stream)->recorded.reset();
  emulation::captured = nullptr;
}

void launch_graph(Graph graph, Stream stream) {
  emulation::refuse_capture(stream, "a graph is started");
  const auto* recorded = static_cast<const emulation::Work*>(graph.handle);
  emulation::give(stream, [work = *recorded] { emulation::run(work); });
  ++emulation::n_graphs;
}

void destroy_graph(Graph graph) noexcept { delete static_cast<emulation::Work*>(graph.handle); }

Launches launches() { return {emulation::n_kernels, emulation::n_graphs}; }

}  // namespace kvasir::cuda
