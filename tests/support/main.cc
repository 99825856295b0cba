// doctest's main, once for every test binary. A run whose cases were all skipped returns
// kAllSkipped.
// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/skip.h"

namespace kvasir::test {
namespace {

unsigned n_skipped = 0, n_run = 0;

// Counts the cases that run.
struct CaseCounter : doctest::IReporter {
  explicit CaseCounter(const doctest::ContextOptions& /*options*/) {}
  void report_query(const doctest::QueryData& /*data*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    n_run = stats.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData& /*data*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*error*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*assert*/) override {}
  void log_message(const doctest::MessageData& /*message*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}
};

REGISTER_LISTENER("skipped", 1, CaseCounter);

}  // namespace

void skip_case() { ++n_skipped; }

}  // namespace kvasir::test

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int code = context.run();
  using namespace kvasir::test;
  return code == 0 && n_skipped > 0 && n_skipped == n_run ? kAllSkipped : code;
}
