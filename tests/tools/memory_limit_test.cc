// Under a limit on memory, a run is refused before it begins, or ends as without one.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
namespace fs = std::filesystem;

// A control group below this process's own, with a limit on memory, of version 1 or 2.
class MemoryGroup {
 public:
  // Nothing where none can be made: no right to, or no such controller.
  static std::optional<fs::path> make() {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const size_t first = line.find(':'), second = line.find(':', first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      const std::string group = line.substr(second + 1);
      const bool is_v1 = controllers == "memory";
      if (!is_v1 && !controllers.empty()) continue;
      const fs::path mount = is_v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
      const fs::path folder =
          mount / fs::path(group).relative_path() / ("kvasir-test-" + std::to_string(getpid()));
      std::error_code error;
      if (!fs::create_directory(folder, error)) continue;
      if (fs::exists(limit_file(folder), error)) return folder;
      fs::remove(folder, error);
    }
    return std::nullopt;
  }
  explicit MemoryGroup(fs::path folder) : folder_(std::move(folder)) {}
  ~MemoryGroup() {
    std::error_code error;
    for (int i = 0; i < 100 && !fs::remove(folder_, error) && error; ++i)  // until it is empty
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  Finished run(uint64_t limit_bytes, const std::string& command) const {
    std::ofstream(limit_file(folder_)) << limit_bytes << std::flush;
    // In the group first: what the shell holds counts, too, and is little.
    return run_shell("echo $$ > " + (folder_ / "cgroup.procs").string() + " && " + command);
  }

 private:
  static fs::path limit_file(const fs::path& folder) {
    const fs::path v1 = folder / "memory.limit_in_bytes";
    return fs::exists(v1) ? v1 : folder / "memory.max";
  }
  fs::path folder_;
};

// Nothing, and says so, where a limit means nothing or cannot be set.
std::optional<fs::path> memory_group() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  MESSAGE("SKIPPED: a sanitizer takes memory of its own");
  return std::nullopt;
#else
  const auto folder = MemoryGroup::make();
  if (!folder) MESSAGE("SKIPPED: no control group with a limit on memory can be made here");
  return folder;
#endif
}

// K and V are most of what it needs.
struct WideModel {
  TempDir folder;
  std::string path = folder.path("wide.gguf"), prompt;
  WideModel() {
    REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--layers", "16", "--d-model", "64",
                        "--d-ff", "128", "--q-heads", "16", "--kv-heads", "16", "--head-dim", "64",
                        "--context", "4096", "-o", path})
                .code == 0);
    std::string words;
    while (words.size() < 600) words.append(" ").append(std::to_string(words.size()));
    prompt = folder.write("prompt", words.substr(0, 600));
  }
};

constexpr const char* kSmall = " --set selector.budget_tokens=128";
constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

TEST_SUITE_BEGIN("tools/memory_limit");

TEST_CASE("too little memory is refused in words, enough memory is enough") {
  const auto folder = memory_group();
  if (!folder) return;
  const MemoryGroup group(*folder);
  const WideModel m;
  const std::string quest = std::string(" -s quest") + kSmall;
  std::optional<int64_t> room_of_dense;
  for (const std::string& strategy :
       {std::string(" -s dense"), quest,
        std::string(" -s infllm --set cache.window_tokens=128") + kSmall,
        std::string(" -s snapkv") + kSmall,
        quest + " --set storage.plugin=tiered --set storage.cached_blocks=4"}) {
    CAPTURE(strategy);
    const std::string common = strategy + " -m " + m.path +
                               " -c 640 -t 2 --set storage.type_k=f32 --set storage.type_v=f32";
    const Finished plan = run_shell("kvasir plan --json" + common.substr(0, common.find(" -t 2")) +
                                    " --set storage.type_k=f32 --set storage.type_v=f32");
    REQUIRE_MESSAGE(plan.code == 0, plan.err);
    const auto needed = nlohmann::json::parse(plan.out)["plans"][0]["total_bytes"].get<uint64_t>();
    const std::string command = "kvasir run" + common + " -f " + m.prompt + " -n 4 --temp 0 --json";
    const Finished free = run_shell(command);
    REQUIRE_MESSAGE(free.code == 0, free.err);
    const auto answer = [](const Finished& done) {
      return nlohmann::json::parse(done.out)["text"].get<std::string>();
    };
    const std::string wanted = answer(free);
    // The plan leaves some room for the program. No strategy takes more of it than dense does: then
    // all that it keeps is counted.
    const auto report = nlohmann::json::parse(free.out);
    const int64_t room =
        report["planned_bytes"].get<int64_t>() - report["peak_resident_bytes"].get<int64_t>();
    if (!room_of_dense) room_of_dense = room;
    CHECK(room > 0);
    CHECK(room > *room_of_dense - int64_t{6 * kMiB});
    std::string outcomes;
    for (const uint64_t limit :
         {8 * kMiB, 16 * kMiB, needed / 4, needed / 2, needed * 7 / 10, needed * 8 / 10,
          needed * 9 / 10, needed, needed + 10 * kMiB, needed * 3 / 2}) {
      CAPTURE(limit);
      const Finished done = group.run(limit, command);
      CAPTURE(done.err);
      outcomes.append(" ").append(std::to_string(limit / kMiB));
      outcomes.append(done.code == 2 ? ":refused" : ":ran");
      if (done.code == 2) {
        CHECK(limit <= needed);
        CHECK(has(done.err, "kvasir: error: a context of 640 tokens needs "));
        CHECK(has(done.err, " are available: lower -c"));
        continue;
      }
      REQUIRE(done.code == 0);
      CHECK(limit >= needed);
      CHECK(answer(done) == wanted);
    }
    MESSAGE(strategy << " (MiB):" << outcomes);
  }
}

TEST_CASE("what is not a run is refused in words, too") {
  const auto folder = memory_group();
  if (!folder) return;
  const MemoryGroup group(*folder);
  const WideModel m;
  for (const std::string& command : std::vector<std::string>{
           "kvasir model skew -m " + m.path + " -f " + m.prompt + " -o " + m.folder.path("skew"),
           "kvasir model logits -m " + m.path + " -f " + m.prompt + " -o " + m.folder.path("npy"),
           "kvasir ppl -m " + m.path + " -f " + m.prompt + " -c 300",
           "kvasir task eval -m " + m.path + " --task passkey --length 600 -n 2 --parallel 2",
           "kvasir compare -s quest -m " + m.path + " -f " + m.prompt + " -n 2",
           "kvasir bench select -s quest -m " + m.path + " -f " + m.prompt + " --depths 256 -n 2",
           "kvasir bench recall -s quest -c 8192 -b 128 -n 2"}) {
    CAPTURE(command);
    for (const uint64_t limit : {16 * kMiB, 40 * kMiB}) {
      const Finished done = group.run(limit, command);
      CAPTURE(done.err);
      CHECK(done.code == 2);
      CHECK(has(done.err, " needs "));
      CHECK(has(done.err, " are available: "));
    }
  }
}

TEST_CASE("a prompt is kept and taken up again without a second copy in memory") {
  const auto folder = memory_group();
  if (!folder) return;
  const MemoryGroup group(*folder);
  const WideModel m;
  const std::string cache = m.folder.path("prompt.kv");
  const std::string command = "kvasir run -m " + m.path + " -f " + m.prompt +
                              " -t 2 -n 4 --temp 0 --set storage.type_k=f32 --set "
                              "storage.type_v=f32 --json --prompt-cache " +
                              cache;
  const Finished whole = run_shell(command);
  REQUIRE_MESSAGE(whole.code == 0, whole.err);
  const auto report = nlohmann::json::parse(whole.out);
  const uint64_t limit = report["planned_bytes"].get<uint64_t>() + 8 * kMiB;
  REQUIRE(fs::file_size(cache) > 70 * kMiB);  // more than the plan leaves
  fs::remove(cache);
  for (int i = 0; i < 2; ++i) {
    const Finished done = group.run(limit, command);
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    CHECK(nlohmann::json::parse(done.out)["text"] == report["text"]);
  }
}

TEST_SUITE_END();
