// BesideThread: both tasks at the same time, call after call, and what they throw.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/beside_thread.h"

#include <doctest/doctest.h>

#include <future>
#include <stdexcept>
#include <string>

namespace {

TEST_SUITE_BEGIN("core/platform/beside_thread");

TEST_CASE("both run at the same time, on two threads, call after call") {
  kvasir::BesideThread beside;
  for (int i = 0; i < 100; ++i) {
    std::promise<std::thread::id> here, there;  // each waits for the other
    std::thread::id seen_here, seen_there;
    beside.run_both(
        [&] {
          here.set_value(std::this_thread::get_id());
          seen_here = there.get_future().get();
        },
        [&] {
          there.set_value(std::this_thread::get_id());
          seen_there = here.get_future().get();
        });
    CHECK(seen_there == std::this_thread::get_id());
    CHECK(seen_here != seen_there);
  }
}

TEST_CASE("what is thrown arrives when both have ended, the caller's own first") {
  kvasir::BesideThread beside;
  const auto error = [&](const char* here, const char* there) -> std::string {
    int n_ended = 0;
    const auto task = [](const char* what) {
      if (*what) throw std::runtime_error(what);
    };
    try {
      beside.run_both([&] { task(here); },
                      [&] {
                        ++n_ended;
                        task(there);
                      });
    } catch (const std::runtime_error& e) {
      CHECK(n_ended == 1);
      return e.what();
    }
    return "";
  };
  CHECK(error("", "there") == "there");
  CHECK(error("here", "") == "here");
  CHECK(error("here", "there") == "here");
  CHECK(error("", "") == "");
}

TEST_SUITE_END();

}  // namespace
