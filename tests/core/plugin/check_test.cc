// The validate mode's own tools: guarded copies, the state of process and thread, sums of blocks.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/plugin/check/block_sums.h"
#include "core/plugin/check/guarded_memory.h"
#include "core/plugin/check/process_state.h"
#include "core/plugin/thread_state.h"
#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using namespace kvasir::test;

uintptr_t address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

TEST_CASE("a guarded output comes back, and what is written beside it is told") {
  for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{4096}, size_t{5000}}) {
    CAPTURE(n);
    std::vector<unsigned char> data(n);
    std::iota(data.begin(), data.end(), static_cast<unsigned char>(0));
    const std::vector<unsigned char> before = data;
    {
      GuardedMemory memory;
      auto* const copy = static_cast<unsigned char*>(memory.add_output("list", data.data(), n));
      CHECK(std::memcmp(copy, before.data(), n) == 0);
      copy[n - 1] = 200;
      CHECK(data == before);
      CHECK(memory.finish() == "");
      CHECK(data[n - 1] == 200);
    }
    if (n % 16 != 0) {  // else the next byte is nobody's
      GuardedMemory memory;
      static_cast<unsigned char*>(memory.add_output("list", data.data(), n))[n] = 1;
      CHECK(memory.finish() == "it wrote behind 'list', which has " + std::to_string(n) + " bytes");
    }
    if (n % 4096 != 0) {
      GuardedMemory memory;
      auto* const copy = static_cast<unsigned char*>(memory.add_output("list", data.data(), n));
      copy[-1] = 1;
      CHECK(memory.finish().starts_with("it wrote before 'list'"));
    }
  }
}

TEST_CASE("an address says which copy it belongs to, also once its call is over") {
  const double numbers[4] = {1, 2, 3, 4};
  const void* copy = nullptr;
  {
    GuardedMemory memory;
    copy = memory.add_input("numbers", numbers, sizeof numbers);
    CHECK(memory.add_input("none", nullptr, 8) == nullptr);
    const GuardedPlace inside = guarded_place_at(address(copy) + 8);
    CHECK(std::string(inside.name) == "numbers");
    CHECK(inside.where == GuardedPlace::Where::kInside);
    CHECK(inside.distance == 8);
    CHECK_FALSE(inside.is_over);
    const GuardedPlace behind = guarded_place_at(address(copy) + sizeof numbers + 4);
    CHECK(behind.where == GuardedPlace::Where::kBehind);
    CHECK(behind.distance == 4);
    CHECK(behind.bytes == sizeof numbers);
    const GuardedPlace before = guarded_place_at(address(copy) - 16);
    CHECK(before.where == GuardedPlace::Where::kBefore);
    CHECK(before.distance == 16);
  }
  CHECK(guarded_place_at(address(copy)).is_over);
  CHECK(guarded_place_at(address(&numbers)).name == nullptr);
  for (int i = 0; i < 5000; ++i) {  // more calls than are remembered
    GuardedMemory memory;
    memory.add_input("others", numbers, sizeof numbers);
  }
  const GuardedPlace later = guarded_place_at(address(copy));
  CHECK((later.name == nullptr || std::string(later.name) == "others"));
}

TEST_CASE("what a call changes of the process is told, but for descriptors of its own") {
  std::set<int> own;
  const auto change_by = [&](auto&& call) {
    const ProcessState before;
    call();
    return ProcessState::change(before, ProcessState(), own);
  };
  CHECK(change_by([] {}) == "");
  const int ours = open("/dev/null", O_RDONLY);
  int theirs = -1;
  CHECK(change_by([&] { theirs = open("/dev/zero", O_RDONLY); }) == "");
  CHECK(own == std::set<int>{theirs});
  CHECK(change_by([&] { dup2(ours, theirs); }) == "");
  CHECK(change_by([&] { close(theirs); }) == "");
  CHECK(own.empty());
  CHECK(change_by([&] { close(ours); }).find("(/dev/null), which it did not open") !=
        std::string::npos);
  CHECK(change_by([] { setenv("KVASIR_TEST_OF_STATE", "1", 1); }) ==
        "it changed the environment variable KVASIR_TEST_OF_STATE");
  CHECK(change_by([] { setenv("KVASIR_TEST_OF_STATE", "2", 1); }) != "");
  CHECK(change_by([] { unsetenv("KVASIR_TEST_OF_STATE"); }) != "");
  const auto before = std::signal(SIGUSR1, SIG_DFL);
  CHECK(change_by([] { std::signal(SIGUSR1, SIG_IGN); }) == "it changed the handler of SIGUSR1");
  std::signal(SIGUSR1, before);
}

TEST_CASE("a thread's state is set back, part by part") {
  const auto changed_by = [](auto&& change) {
    const ThreadState before;
    change();
    const uint32_t parts = before.restore();
    CHECK(before.restore() == 0);
    return parts;
  };
  CHECK(changed_by([] {}) == 0);
  CHECK(changed_by([] { std::fesetround(FE_DOWNWARD); }) == ThreadState::kFloatControl);
  CHECK(std::fegetround() == FE_TONEAREST);
  CHECK(changed_by([] { std::feraiseexcept(FE_INEXACT); }) == 0);
  CHECK(changed_by([] { std::setlocale(LC_ALL, "C.UTF-8"); }) == ThreadState::kLocale);
  CHECK(std::string(std::setlocale(LC_ALL, nullptr)) == "C");
  const locale_t other = newlocale(LC_ALL_MASK, "C.UTF-8", nullptr);
  CHECK(changed_by([&] { uselocale(other); }) == ThreadState::kLocale);
  freelocale(other);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  CHECK(changed_by([&] { pthread_sigmask(SIG_BLOCK, &one, nullptr); }) == ThreadState::kSignalMask);
  CHECK(changed_by([&] {
          std::fesetround(FE_UPWARD);
          pthread_sigmask(SIG_BLOCK, &one, nullptr);
        }) == (ThreadState::kFloatControl | ThreadState::kSignalMask));
  CHECK(restored_text("select", 5) ==
        "select changed the thread's floating-point control (MXCSR) and signal mask, which is as "
        "before now (a defect of the plugin)");
}

TEST_CASE("the sum of a lease covers K and V of its tokens, and nothing else") {
  const BlockShape shape{2, 3, 5};
  constexpr uint32_t kTokens = 4;
  // [head][token], with a gap of one float behind each row.
  std::vector<float> k(2 * kTokens * 4, 1.0f), v(2 * kTokens * 6, 2.0f);
  kvasir_kv_format format{};
  format.dtype_k = format.dtype_v = KVASIR_DTYPE_F32;
  format.k_token_stride = 16;
  format.k_head_stride = 16 * kTokens;
  format.v_token_stride = 24;
  format.v_head_stride = 24 * kTokens;
  kvasir_lease lease{};
  lease.k = k.data();
  lease.v = v.data();
  lease.kv_head = KVASIR_ALL_HEADS;
  const auto sum = [&] { return sum_of(lease, 3, format, shape); };
  const uint64_t before = sum();
  CHECK(before != 0);
  const auto differs = [&](float& at) {
    at += 1;
    const bool is_other = sum() != before;
    at -= 1;
    return is_other;
  };
  for (size_t i = 0; i < k.size(); ++i) {
    CAPTURE(i);
    CHECK(differs(k[i]) == (i % 4 < 3 && i / 4 % kTokens < 3));
  }
  for (size_t i = 0; i < v.size(); ++i) {
    CAPTURE(i);
    CHECK(differs(v[i]) == (i % 6 < 5 && i / 6 % kTokens < 3));
  }
  lease.kv_head = 0;
  CHECK(differs(k[0]) == true);
  lease.kv_head = KVASIR_ALL_HEADS;
  format.mem_kind = KVASIR_MEM_DEVICE;
  CHECK(sum() == 0);
}

}  // namespace
