// A plugin that ends the process is named, and refused from then on.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;

const std::string kFakes = KVASIR_BINARY_DIR "/test-plugins/fake";

// A sanitizer ends the process in its own way.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kExactCodes = false;
#else
constexpr bool kExactCodes = true;
#endif

// Runs under a strategy of the fake `plugin`, whose cache folder outlives the run.
struct Runs {
  TinyModel model;
  TempDir folder;

  Finished run(const std::string& plugin, const std::string& options) const {
    const std::string strategy = folder.write(
        "s.toml", "[cache]\nblock_size = 16\n[selector]\nplugin = '" + plugin + "'\n" + options);
    return kvasir({"run", "-m", model.path, "-p", std::string(200, 'a'), "-n", "3", "-s", strategy,
                   "--plugin-dir", kFakes});
  }
  Finished kvasir(const std::vector<std::string>& arguments) const {
    return run_kvasir(arguments, {"XDG_CACHE_HOME=" + folder.path("cache")});
  }
};

}  // namespace

TEST_SUITE_BEGIN("tools/plugin_crash");

TEST_CASE(
    "a crash names signal, plugin, file, function and layer; the file is refused afterwards") {
  struct Case {
    const char *how, *where, *said;
    int code;
  };
  const Runs runs;
  for (const Case& c : {Case{"segv", "select", "SIGSEGV", 128 + SIGSEGV},
                        {"bus", "select", "SIGBUS", 128 + SIGBUS},
                        {"fpe", "select", "SIGFPE", 128 + SIGFPE},
                        {"ill", "select", "SIGILL", 128 + SIGILL},
                        {"abort", "select", "SIGABRT", 128 + SIGABRT},
                        {"exit", "select", "exit()", 1},
                        {"overflow", "select", "SIGSEGV", 128 + SIGSEGV},
                        {"worker_segv", "select", "SIGSEGV", 128 + SIGSEGV},
                        {"segv", "bind", "SIGSEGV", 128 + SIGSEGV},
                        {"abort", "limits", "SIGABRT", 128 + SIGABRT},
                        {"exit", "seq_open", "exit()", 1},
                        {"segv", "destroy", "SIGSEGV", 128 + SIGSEGV}}) {
    CAPTURE(std::string(c.how));
    CAPTURE(std::string(c.where));
    const std::string options = std::string("how = '") + c.how + "'\nwhere = '" + c.where + "'\n";
    const Finished crashed = runs.run("kvasir.test.crash_selector", options);
    CAPTURE(crashed.err);
    CHECK(crashed.code != 0);
    if (kExactCodes) CHECK(crashed.code == c.code);
    CHECK(has(crashed.err, std::string("kvasir: crash: ") + c.said +
                               " in plugin kvasir.test.crash_selector (" + kFakes +
                               "/crash_selector.so): " + c.where));
    CHECK(has(crashed.err, "layer") == (c.where == std::string("select")));
    CHECK(has(crashed.err, "kvasir plugin unblock kvasir.test.crash_selector\n"));
    const Finished refused = runs.run("kvasir.test.crash_selector", options);
    CAPTURE(refused.err);
    CHECK(refused.code == 2);
    CHECK(has(refused.err, std::string("ended kvasir with ") + c.said + " in " + c.where));
    CHECK(has(refused.err, "kvasir plugin unblock kvasir.test.crash_selector"));
    const Finished allowed = runs.kvasir({"plugin", "unblock", "kvasir.test.crash_selector"});
    CHECK(allowed.code == 0);
    CHECK(allowed.out == kFakes + "/crash_selector.so: allowed again\n");
  }
  const Finished none = runs.kvasir({"plugin", "unblock", "kvasir.test.crash_selector"});
  CHECK(none.code == 2);
  CHECK(has(none.err, "no such plugin is blocked"));
}

TEST_CASE("a crash on a thread of the plugin's own names the plugin") {
  const Runs runs;
  const Finished thread = runs.run("kvasir.test.crash_selector", "how='thread'\nwhere='select'\n");
  CAPTURE(thread.err);
  CHECK(thread.code != 0);
  CHECK(has(thread.err, "SIGSEGV in plugin kvasir.test.crash_selector"));
  CHECK(has(thread.err, "a thread of its own"));
}

TEST_CASE("an exception that nobody catches says what it is") {
  const Runs runs;
  const Finished thrown = runs.run("kvasir.test.crash_selector", "how='throw'\nwhere='select'\n");
  CAPTURE(thrown.err);
  CHECK(thrown.code != 0);
  CHECK(has(thrown.err, "an exception that nobody catches: lost in a thread"));
}

TEST_CASE("a file that crashes or hangs when it is loaded does not take the run along") {
  const Runs runs;
  for (int i = 0; i < 2; ++i) {
    const Finished refused = runs.run("kvasir.test.crash_on_load", "");
    CAPTURE(refused.err);
    CHECK(refused.code == 2);
    CHECK(has(refused.err, "ended kvasir with SIGSEGV in its constructors"));
  }
  const Finished info = runs.kvasir({"plugin", "info", kFakes + "/crash_on_load.so"});
  CHECK(info.code == 2);
  CHECK(has(info.err, "ended kvasir with SIGSEGV in its constructors"));
  const Finished list = runs.kvasir({"plugin", "list", "--plugin-dir", kFakes});
  CHECK(list.code == 0);
  CHECK(has(list.out, "ended kvasir with SIGSEGV in its constructors"));
}

TEST_CASE("a plugin that does not return is named, and Ctrl-C ends the run") {
  const Runs runs;
  const std::string strategy =
      runs.folder.write("hang.toml",
                        "[cache]\nblock_size = 16\nslow_call_seconds = 1\n[selector]\nplugin = "
                        "'kvasir.test.crash_selector'\nhow = 'hang'\nwhere = 'select'\n");
  RunningKvasir hanging({"run", "-m", runs.model.path, "-p", std::string(200, 'a'), "-n", "3", "-s",
                         strategy, "--plugin-dir", kFakes});
  REQUIRE(
      wait_until([&] { return has(hanging.err(), "kvasir.test.crash_selector: select has run"); }));
  CHECK(has(hanging.err(), "layer"));
  hanging.interrupt();
  const Finished done = hanging.finish();
  CAPTURE(done.err);
  CHECK(done.code == 130);
  CHECK(has(done.err, "interrupted, and kvasir.test.crash_selector does not return from select"));
}

TEST_SUITE_END();
