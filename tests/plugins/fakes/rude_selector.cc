// A selector that attends to everything and, on request, does beside that what no plugin may:
// `what`, in every select() but the first, or in limits().
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kWhat[] = {
    "none",        "rounding",    "worker_rounding", "locale",       "thread_locale",
    "signal_mask", "prints",      "writes_input",    "reads_behind", "reads_before",
    "late_read",   "writes_list", "writes_kv",       "closes_fd",    "environment",
    "folder",      "handler",     "grows",           "leaves_fd",    "leaves_memory",
    "huge_state",  "odd_unit",    "odd_plans",       "reserved",     "no_observe"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "what", .help = "it does beside selecting"}, kWhat, 0)};

volatile float nowhere;

const locale_t other_locale = newlocale(LC_ALL_MASK, "C.UTF-8", nullptr);

class RudeSelector {
 public:
  static constexpr kvasir_desc kDesc = fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.rude_selector",
                                                 kOptions, {.needs = KVASIR_NEED_KEYS});

  RudeSelector(const sdk::Host& host, const sdk::Options& o)
      : host_(host), what_(kWhat[o.choice("what")]) {}
  void bind(const kvasir_geometry&) {}
  void limits(kvasir_sel_limits& out) const {
    out.unit = what_ == "odd_unit" ? 9 : KVASIR_UNIT_BLOCK;
    if (what_ == "huge_state") out.memory.state_bytes = UINT64_MAX;
    if (what_ == "odd_plans") out.plans.at = 128;
    if (what_ == "reserved") out.mass.reserved = 1;
    if (what_ == "no_observe") out.mass.at = KVASIR_MASS_AT_DECODE;
  }
  kvasir_status select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    out.n_lists = step.n_seqs();
    std::fill_n(out.list_offsets, out.n_lists + 1, 0);
    std::fill_n(out.list_flags, out.n_lists, KVASIR_LIST_ALL);
    if (n_calls_++ > 0) act(in, out);
    last_q_ = static_cast<const float*>(in.q.data);
    return KVASIR_OK;
  }

 private:
  void act(const kvasir_sel_in& in, kvasir_selection& out) {
    auto* const q = static_cast<float*>(in.q.data);
    const uint64_t n = in.q.shape[0] * in.q.shape[1] * in.q.shape[2];
    if (what_ == "rounding") std::fesetround(FE_DOWNWARD);
    if (what_ == "worker_rounding")
      host_.for_each(64, [](uint32_t) { std::fesetround(FE_UPWARD); });
    if (what_ == "locale") std::setlocale(LC_ALL, "C.UTF-8");
    if (what_ == "thread_locale") uselocale(other_locale);
    if (what_ == "signal_mask") {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
    }
    if (what_ == "prints") std::puts("rude words on standard output"), std::fflush(stdout);
    if (what_ == "writes_input") q[0] += 1;
    if (what_ == "reads_behind") nowhere = q[n];
    if (what_ == "reads_before") nowhere = q[-1024];
    if (what_ == "late_read") nowhere = last_q_[0];
    if (what_ == "writes_list") out.index[out.capacity] = 1;
    if (what_ == "writes_kv") *static_cast<unsigned char*>(in.leases[0].k) ^= 1;
    if (what_ == "closes_fd") close(STDERR_FILENO + 1);
    if (what_ == "environment") setenv("LC_NUMERIC", "xx_YY", 1);
    if (what_ == "folder") nowhere = static_cast<float>(chdir("/"));
    if (what_ == "handler") std::signal(SIGINT, SIG_IGN);
    if (what_ == "leaves_fd" && n_calls_ == 2) nowhere = static_cast<float>(open("/", O_RDONLY));
    if (what_ == "grows" || what_ == "leaves_memory") {
      auto hoard = std::make_unique<char[]>(size_t{4} << 20);
      nowhere = hoard[0];
      (what_ == "grows" ? hoards_ : *new std::vector<std::unique_ptr<char[]>>)
          .push_back(std::move(hoard));
    }
  }
  sdk::Host host_;
  std::string_view what_;
  uint32_t n_calls_ = 0;
  const float* last_q_ = nullptr;
  std::vector<std::unique_ptr<char[]>> hoards_;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.rude_selector", "0.1.0", RudeSelector)
