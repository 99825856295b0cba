// See first_contact.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/first_contact.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "core/plugin/instance.h"
#include "core/plugin/loader.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/session/blocked_plugins.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kContactPatience{20};

bool is_seen(const fs::path& list, const std::string& line) {
  std::ifstream in(list);
  for (std::string known; std::getline(in, known);)
    if (known == line) return true;
  return false;
}

void remember(const fs::path& list, const std::string& line) {
  std::error_code error;
  fs::create_directories(list.parent_path(), error);
  std::ofstream(list, std::ios::app) << line << '\n';  // lost: the next run tries again
}

// -1: it cannot be started. Its output goes nowhere.
pid_t start(const std::string& path) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&files, descriptor, "/dev/null", O_RDWR, 0);
  std::string program = "/proc/self/exe", copy = path;
  char plugin[] = "plugin", probe[] = "probe";
  char* const argv[] = {program.data(), plugin, probe, copy.data(), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, program.c_str(), &files, nullptr, argv, environ) != 0) child = -1;
  posix_spawn_file_actions_destroy(&files);
  return child;
}

// The status of waitpid(); nothing when it had to be ended.
std::optional<int> wait_for(pid_t child) {
  const auto end = std::chrono::steady_clock::now() + kContactPatience;
  for (int status = 0; std::chrono::steady_clock::now() < end;) {
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) return status;
    if (done < 0 && errno != EINTR) return 0;  // somebody else waited for it
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return std::nullopt;
}

}  // namespace

std::string first_contact(const PluginFile& file) {
  if (file.level == "install") return "";
  const fs::path folder = cache_folder();
  const std::string line = file_state(file.path) + file.path;
  if (!folder.empty() && is_seen(folder / "seen-plugins", line)) return "";
  const pid_t child = start(file.path);
  if (child < 0) return "";
  const std::optional<int> status = wait_for(child);
  if (!status)
    return "does not come back from being loaded and created: it was tried in a process of its own "
           "for " +
           std::to_string(kContactPatience.count()) + " s";
  if (WIFSIGNALED(*status)) {
    const std::string why = why_blocked(file.path);
    return why.empty() ? "ends a process that loads and creates it with signal " +
                             std::to_string(WTERMSIG(*status))
                       : why;
  }
  // What it refuses it refuses here, too, in words that somebody reads.
  if (WEXITSTATUS(*status) == 0 && !folder.empty()) remember(folder / "seen-plugins", line);
  const std::string why = why_blocked(file.path);
  return why;
}

void probe_plugin(const std::string& path) {
  const PluginFile file = inspect_plugin_file(path);
  if (file.verdict != PluginFile::Verdict::kUsable) throw input_error(describe(file));
  Options options;
  options.threads = 1;
  PluginHost host(options);
  const auto loaded = std::make_shared<LoadedPlugin>(file, *host.services().host());
  for (uint32_t i = 0; i < loaded->descs().size(); ++i) {
    const kvasir_desc* desc = loaded->descs()[i];
    const ResolvedOptions values(*desc, {});
    kvasir_instance* instance = nullptr;
    kvasir_err err{};
    err.struct_size = sizeof(err);
    const BreadcrumbScope crumb(
        {kept_text(desc->id), kept_text(file.path), "create", Breadcrumb::kNoLayer});
    const kvasir_status status = loaded->table()->create(
        i, host.services().host(), values.values().data(),
        static_cast<uint32_t>(values.values().size()), sizeof(kvasir_option), &instance, &err);
    if (status == KVASIR_OK && instance && instance->destroy) instance->destroy(instance->self);
  }
}

}  // namespace kvasir::tool
