// kvasir.store/1 of kvasir.tiered: what is found after a kill, a full disk or damage, and what
// list(), verify() and prune() do.
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/plugins/storage/store_instance.h"
#include "tests/support/effort.h"
#include "tests/support/heap_bytes.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir::test;
namespace fs = std::filesystem;

std::vector<fs::path> files_of(const std::string& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != "about") out.push_back(entry.path());
  return out;
}

// Writes blocks 0, 1 … until it is killed.
[[noreturn]] void write_forever(const std::string& folder) {
  StoreInstance store(folder);
  for (uint32_t block = 0;; ++block) store.keep(block, block + 1, first_of(block));
}

}  // namespace

TEST_SUITE("plugins/storage/store") {
  TEST_CASE("a block is found by the next process, under its name alone") {
    const TempDir dir;
    const std::string folder = dir.path("store");
    { StoreInstance(folder).keep(3, 42, 5.0f); }
    REQUIRE(files_of(folder).size() == 1);
    struct stat status {};
    REQUIRE(stat(folder.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    REQUIRE(stat(files_of(folder)[0].c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    CHECK(static_cast<uint64_t>(status.st_size) == kFileBytes);
    StoreInstance next(folder);
    CHECK(next.find(3, 42, 5.0f));
    CHECK(next.find(3, 42, 5.0f));  // also once it was let go
    CHECK(!next.find(3, 43, 5.0f));
    CHECK(!next.find(2, 42, 5.0f));
    CHECK(!StoreInstance(folder, {}, kOtherRun).find(3, 42, 5.0f));
  }

  TEST_CASE("a block whose name is a nonce is not stored; without a store there is no extension") {
    const TempDir dir;
    const std::string folder = dir.path("store");
    { StoreInstance(folder).keep(0, uint64_t{1} << 63 | 9, 1.0f); }  // sealed under the name it had
    CHECK(files_of(folder).empty());
    CompletingHost host;
    PluginInstance<kvasir_storage> plain(host, "tiered");
    CHECK(plain->base.get_extension(plain.self(), KVASIR_EXT_STORE) == nullptr);
  }

  TEST_CASE("what a killed process has stored is whole, and the rest is not there") {
    const TempDir dir;
    std::mt19937 random(1);
    uint32_t n_found = 0;
    for (int kill_number = 0; kill_number < n_kills(40); ++kill_number) {
      const std::string folder = dir.path(std::to_string(kill_number));
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        write_forever(folder);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(3000 + random() % 60000));
      kill(child, SIGKILL);
      REQUIRE(waitpid(child, nullptr, 0) == child);
      StoreInstance store(folder);
      const kvasir_store_result checked = store.verify();
      CHECK(checked.n_bad == 0);
      uint32_t block = 0;
      while (store.find(block, block + 1, first_of(block))) ++block;
      CHECK(block == checked.n_files);
      n_found += block;
    }
    CHECK(n_found > 0);
  }

  TEST_CASE("a full disk ends nothing and is said once; what was stored stays") {
    const TempDir dir;
    StoreInstance store(dir.path("store"));
    store.keep(0, 1, first_of(0));
    while (files_of(dir.path("store")).empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    void (*const before)(int) = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const rlimit small = {200, limit.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    for (uint32_t block = 1; block < 5; ++block) store.keep(block, block + 1, first_of(block));
    const auto told = [&] { return store.n_lines("the store in"); };
    for (int i = 0; i < 2000 && told() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, before);
    CHECK(told() == 1);
    CHECK(store.find(0, 1, first_of(0)));
    CHECK(!store.find(1, 2, first_of(1)));
    CHECK(store.verify().n_bad == 0);
  }

  TEST_CASE("every flipped byte makes a miss, and the file goes") {
    const TempDir dir;
    const std::string folder = dir.path("store");
    for (uint64_t at = 0; at < kFileBytes; at += few_cases() ? 97 : 1) {
      { StoreInstance(folder).keep(0, 1, 5.0f); }
      const auto files = files_of(folder);
      REQUIRE(files.size() == 1);
      std::fstream bytes(files[0], std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(at));
      const int byte = bytes.get();
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(static_cast<char>(byte ^ 0x10));
      bytes.close();
      StoreInstance store(folder);
      CHECK(store.verify().n_bad == 1);
      CHECK(!store.find(0, 1, 5.0f));
      CHECK(files_of(folder).empty());
    }
  }

  // CacheBlend's index takes 16 MB per million chunks (arXiv:2405.16444, section 6); here names
  // are computed from tokens, and the folder is the index.
  TEST_CASE("a store takes at most 1.2 x 16 bytes of memory per block that it has") {
    if (!counts_heap_bytes()) return;
    const TempDir dir;
    const auto bytes_with = [&](const std::string& folder, uint32_t n) {
      {
        StoreInstance store(folder);
        for (uint32_t block = 0; block < n; ++block) store.keep(block, block + 1, first_of(block));
      }
      const size_t before = heap_bytes();
      StoreInstance store(folder);
      CHECK(store.find(n - 1, n, first_of(n - 1)));
      CHECK(!store.find(n, n + 1, 0.0f));
      return static_cast<double>(heap_bytes()) - static_cast<double>(before);
    };
    const uint32_t n = few_cases() ? 500 : 4000;
    const double one = bytes_with(dir.path("one"), 1), many = bytes_with(dir.path("many"), n);
    CHECK(many - one <= 1.2 * 16 * n);
  }

  TEST_CASE("list counts runs, prune takes the oldest and of one prompt the last blocks first") {
    const TempDir dir;
    const std::string folder = dir.path("store");
    {
      StoreInstance store(folder);
      for (uint32_t block = 0; block < 6; ++block) store.keep(block, block + 1, first_of(block));
    }
    { StoreInstance(folder, {}, kOtherRun).keep(0, 1, 5.0f); }
    std::ofstream(folder + "/somebody's file") << "stays";
    StoreInstance tool(folder, {}, nullptr);  // not bound
    auto runs = tool.list();
    REQUIRE(runs.size() == 2);
    CHECK(runs[0].run[0] == 5);
    CHECK(runs[1].run[0] == kRun[0]);
    CHECK(std::string(runs[1].about) == "a model");
    CHECK(runs[1].n_blocks == 6);
    CHECK(runs[1].n_tokens == 24);
    CHECK(runs[1].n_files == 6);
    CHECK(runs[1].bytes == 6 * kFileBytes);
    kvasir_store_filter filter = {sizeof filter,
                                  KVASIR_STORE_ONE_RUN | KVASIR_STORE_LIMIT,
                                  {kRun[0], kRun[1]},
                                  2 * kFileBytes + 5,
                                  0};
    CHECK(tool.prune(filter).n_removed == 4);
    StoreInstance store(folder);
    CHECK(store.find(0, 1, first_of(0)));
    CHECK(store.find(1, 2, first_of(1)));
    CHECK(!store.find(2, 3, first_of(2)));
    filter = {sizeof filter, KVASIR_STORE_OLDER, {}, 0, 3600};
    CHECK(tool.prune(filter).n_removed == 0);
    for (const auto& file : files_of(folder))
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(2));
    CHECK(store.find(0, 1, first_of(0)));  // a use
    CHECK(tool.prune(filter).n_removed == 2);
    CHECK(store.find(0, 1, first_of(0)));
    filter = {sizeof filter, 0, {}, 0, 0};
    CHECK(tool.prune(filter).n_removed == 1);
    CHECK(tool.list().empty());
    CHECK(fs::exists(folder + "/somebody's file"));
  }

  TEST_CASE("verify names what is not whole, and removes it when told to") {
    const TempDir dir;
    const std::string folder = dir.path("store");
    {
      StoreInstance store(folder);
      for (uint32_t block = 0; block < 3; ++block) store.keep(block, block + 1, first_of(block));
    }
    const auto files = files_of(folder);
    fs::resize_file(files[1], 50);
    StoreInstance store(folder);
    CHECK(store.verify().n_bad == 1);
    CHECK(store.verify(KVASIR_STORE_DELETE).n_removed == 1);
    const kvasir_store_result after = store.verify();
    CHECK(after.n_bad == 0);
    CHECK(after.n_files == 2);
  }

  TEST_CASE("a folder that others may write is refused, with what to do") {
    const TempDir dir;
    fs::create_directory(dir.path("store"));
    fs::permissions(dir.path("store"), fs::perms::all);
    CompletingHost host;
    OptionValues options = {{"store", dir.path("store")}};
    PluginInstance<kvasir_storage> plugin(host, "tiered", options);
    CHECK(plugin.status() == KVASIR_ERR_IO);
    CHECK(plugin.text().find("chmod go-w") != std::string::npos);
  }

  TEST_CASE("a folder of another user is refused, since he could write what is read") {
    const TempDir dir;
    const std::string store = dir.path("store");
    fs::create_directory(store);
    fs::permissions(store, fs::perms::owner_all);
    if (::chown(store.c_str(), ::geteuid() + 1, ::getegid()) != 0) {
      MESSAGE("SKIPPED: only root can give a folder away");
      return;
    }
    CompletingHost host;
    OptionValues options = {{"store", store}};
    PluginInstance<kvasir_storage> plugin(host, "tiered", options);
    CHECK(plugin.status() == KVASIR_ERR_IO);
    CHECK(plugin.text().find("belongs to another user") != std::string::npos);
  }
}
