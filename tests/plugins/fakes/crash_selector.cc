// A selector that ends the process on request: `how` it does, `where`.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kHow[] = {"none",   "segv",  "bus",  "fpe",      "ill",
                                "abort",  "throw", "exit", "overflow", "worker_segv",
                                "thread", "hang",  "_exit"};
constexpr const char* kPlaces[] = {"create", "bind", "limits", "seq_open", "select", "destroy"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "how", .help = "the process ends"}, kHow, 0),
    sdk::enum_option({.key = "where", .help = "in which function"}, kPlaces, 0)};

volatile int* volatile nowhere = nullptr;
volatile int zero = 0;

// The stack runs over before it returns.
int dig(int depth) {
  volatile char space[4096];
  space[0] = static_cast<char>(depth);
  return depth == 1 << 30 ? 0 : dig(depth + 1) + space[0];
}

class CrashSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.crash_selector", kOptions);

  CrashSelector(const sdk::Host& host, const sdk::Options& o)
      : host_(host), how_(kHow[o.choice("how")]), where_(kPlaces[o.choice("where")]) {
    reach("create");
  }
  ~CrashSelector() { reach("destroy"); }
  void bind(const kvasir_geometry&) { reach("bind"); }
  void limits(kvasir_sel_limits& out) const {
    reach("limits");
    out.unit = KVASIR_UNIT_BLOCK;
  }
  void seq_open(std::span<const uint64_t>) { reach("seq_open"); }
  void seq_fork(std::span<const uint64_t>, std::span<const uint64_t>) {}
  kvasir_status seq_truncate(std::span<const uint64_t>, std::span<const uint32_t>) {
    return KVASIR_OK;
  }
  void seq_close(std::span<const uint64_t>) {}
  kvasir_status select(const sdk::Step&, const kvasir_sel_in&, kvasir_selection&) {
    reach("select");
    return KVASIR_FALLBACK;
  }

 private:
  void reach(std::string_view where) const {
    if (where != where_) return;
    if (how_ == "segv") *nowhere = 1;
    if (how_ == "bus") raise(SIGBUS);
    if (how_ == "fpe") zero = 7 / zero;
    if (how_ == "ill") __builtin_trap();
    if (how_ == "abort") std::abort();
    if (how_ == "throw") std::thread([] { throw std::runtime_error("lost in a thread"); }).join();
    if (how_ == "exit") std::exit(0);
    if (how_ == "_exit") _exit(0);
    if (how_ == "overflow") dig(0);
    if (how_ == "worker_segv") host_.for_each(64, [](uint32_t) { *nowhere = 1; });
    if (how_ == "thread") std::thread([] { *nowhere = 1; }).join();
    while (how_ == "hang") pause();
  }
  sdk::Host host_;
  std::string_view how_, where_;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.crash_selector", "0.1.0", CrashSelector)
